"""Make the generated pages of docs/ again: references from the code, levers from results/.

    python scripts/docs_reference.py

Commands and options come from the cyclopts app. Keys, types and defaults of whet.yaml come from the
spec's models, their texts from the models' docstrings and the comments of `whet init`'s template.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from whet.cli.init import template
from whet.cli.main import app
from whet.core.spec import Spec
from whet.levers import LEVERS

ROOT: Final = Path(__file__).resolve().parent.parent
_NOTICE: Final = "<!-- Made by scripts/docs_reference.py. Do not edit. -->\n\n"
_INTRO: Final = """# whet.yaml

`whet init` writes this file with comments; `whet check` and `whet run` read it. An unknown key is
an error. Relative paths count from the file's own folder. On the command line
`--set KEY.PATH=VALUE` replaces a key.

"""
_Schema = Mapping[str, Any]
_KEY: Final = re.compile(r"( *)(?:# )?([a-z_0-9]+):(?: +[^#]*?)?(?: +# (.+))?")
_LIMITS: Final = {
    "minimum": "≥",
    "ge": "≥",
    "exclusiveMinimum": ">",
    "gt": ">",
    "maximum": "≤",
    "le": "≤",
    "exclusiveMaximum": "<",
    "lt": "<",
}
_TYPES: Final = {
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}


_LEVERS: Final = {
    "weights": ("`weights`", "fewer bits per weight", "kernel and quantized layers in the log"),
    "KV cache": ("`kv_cache_dtype`", "keys and values in 8 bits", "their type in labels and log"),
    "speculation": (
        "`speculation`",
        "a draft proposes K tokens",
        "drafts and accepted tokens counted",
    ),
    "prefix cache": ("`prefix_cache`", "shared prefixes are read once", "hit rate counted"),
    "batching": (
        "`batching`, flags",
        "limits of a batch and a step",
        "the client's times; settings",
    ),
    "preset": ("`args`", "scheduler flags by kind of traffic", "resolved settings"),
    "multi-LoRA": ("`loras`", "adapters beside one another", "log, `/v1/models` and gauge"),
    "attention": ("`attention_backend`", "another attention kernel", "the backend in the log"),
    "execution": ("`enforce_eager`", "compilation, CUDA graphs", "their capture in the log"),
    "scheduling": (
        "`async_scheduling`",
        "steps overlap their scheduling",
        "log and `/server_info`",
    ),
    "parallelism": (
        "`tensor_parallel_size` …",
        "several devices",
        "sizes and ranks in log and metrics",
    ),
}
"""Each lever of the CSV files: what sets it, what it does, what proves it."""


def pages() -> dict[str, str]:
    """Return each generated page by its path in docs/."""
    return {
        "levers.md": _levers(),
        "reference/cli.md": _cli(),
        "reference/whet-yaml.md": _whet_yaml(),
    }


def _levers() -> str:
    page = (ROOT / "docs" / "levers.md").read_text(encoding="utf-8")
    machines = [_proved(ROOT / "results" / name) for name in ("levers-cpu", "levers-h100")]
    rows = [
        "| lever | set by | what it does | proved by | CPU, 0.32 | H100, 0.26 |",
        "|---|---|---|---|--:|--:|",
    ]
    for lever, texts in _LEVERS.items():
        counts = [f"{sum(each[lever])} of {len(each[lever])}" for each in machines]
        if lever == "parallelism":  # those machines have one device
            counts = ["–", "[2 to 4 GPUs](several-servers.md)"]
        rows.append(f"| {' | '.join([lever, *texts, *counts])} |")
    before, mark, rest = page.partition("made by scripts/docs_reference.py -->\n")
    after = rest.partition("<!-- end -->")[2]
    return "".join([before, mark, "\n", "\n".join(rows), "\n\n<!-- end -->", after])


def _proved(folder: Path) -> dict[str, list[bool]]:
    """Whether each setting of a lever was proved."""
    proved: dict[str, list[bool]] = {}
    with (folder / "levers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            proved.setdefault(row["lever"], []).append(row["verdict"] == "proved")
    return proved


def _cli() -> str:
    app.resolved_commands()  # they are paths until they are used
    text = app.generate_docs(usage_name="whet").rstrip()
    return _NOTICE + text.replace("# whet\n", "# Command line\n", 1) + "\n"


def _whet_yaml() -> str:
    schema = Spec.model_json_schema()
    models = schema["$defs"]
    for lever in LEVERS:
        if lever.spec_type is not None:
            text = (lever.__doc__ or "").splitlines()[0].partition(": ")[2]
            key = {**TypeAdapter(lever.spec_type).json_schema(), "default": None}
            key["description"] = text[:1].upper() + text[1:]
            models["VariantSpec"]["properties"][lever.name] = key
    parts = [_NOTICE + _INTRO]
    for place, section in _sections(schema, models, ""):
        if place:
            parts.append(f"## {place}\n\n{section['description']}\n\n".replace("``", "`"))
        parts.append(_table(place, section, models))
    return "".join(parts).rstrip() + "\n"


def _sections(section: _Schema, models: _Schema, place: str) -> Iterator[tuple[str, _Schema]]:
    """Yield a section and then those inside it, each with its dotted path."""
    yield place, section
    for key, value in section["properties"].items():
        path = _inside(place, key)
        for model, below in ((_model(value), path), (_model(_named(value)), f"{path}.NAME")):
            if model is not None:
                yield from _sections(models[model], models, below)


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _named(value: _Schema) -> _Schema:
    """The schema of the values of a map from names."""
    named = value.get("additionalProperties")
    return named if isinstance(named, dict) else {}


def _model(value: _Schema) -> str | None:
    """The name of the model that a value is, if it is one."""
    for each in (value, *value.get("anyOf", ())):
        if "$ref" in each:
            return str(each["$ref"]).rpartition("/")[2]
    return None


def _table(place: str, section: _Schema, models: _Schema) -> str:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, value in section["properties"].items():
        path = _inside(place, key)
        default = "required" if key in section.get("required", ()) else _default(value)
        text = meaning(path, value, models)
        rows.append(f"| `{key}` | {_value(value, path)} | {default} | {text} |")
    return "\n".join(rows) + "\n\n"


def meaning(path: str, value: _Schema, models: _Schema) -> str:
    """Return a key's text: the field's own, else the template's, else the section's first line."""
    text = value.get("description") or template_comments().get(path)
    if text is None and (model := _model(value)):
        text = str(models[model]["description"]).splitlines()[0]
    if not text:
        raise ValueError(f"{path} has no text; add a comment to src/whet/cli/whet.yaml")
    return text.replace("|", "\\|").replace("``", "`")


def _value(value: _Schema, path: str) -> str:
    """What a key takes, in words."""
    options = [each for each in value.get("anyOf", ()) if each.get("type") != "null"]
    if len(options) > 1:
        mixed = any("enum" in each or "additionalProperties" in each for each in options)
        parts = [_value(each, path) for each in options] if mixed else []
        return "; or ".join(parts) or "text, number or `true`, `false`"
    if _model(value):
        return f"[section](#{path.replace('.', '').lower()})"
    value = options[0] if options else value
    if "enum" in value or "const" in value:
        return ", ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    if value["type"] == "array":
        parts = [_value(each, path) for each in value.get("prefixItems") or [value["items"]]]
        return f"[{', '.join(parts)}]" if "prefixItems" in value else f"list: {parts[0]}"
    if value["type"] == "object":
        return f"by name: {_value(_named(value), path + '.NAME')}"
    limits = [f"{sign} {value[name]:g}" for name, sign in _LIMITS.items() if name in value]
    kind = "path" if value.get("format") == "path" else _TYPES[value["type"]]
    return ", ".join([kind, *limits])


def _default(value: _Schema) -> str:
    default = value.get("default")
    if default is None or default in ({}, []) or _model(value) or _model(_named(value)):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


@cache
def template_comments() -> dict[str, str]:
    """Return the comment beside each key of `whet init`'s template, by dotted path."""
    comments: dict[str, str] = {}
    path: list[str] = []
    for line in template("./model", "./draft").splitlines():
        if (match := _KEY.fullmatch(line)) is None:
            continue
        indent, key, comment = match.groups()
        path = [*path[: len(indent) // 2], key]
        if path[0] in ("recipes", "variants") and len(path) > 1:
            path[1] = "NAME"
        if comment:
            first, space, rest = comment.partition(" ")
            first = first.capitalize() if first.islower() else first  # but not vLLM's
            comments[".".join(path)] = f"{first}{space}{rest}."
    return comments


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
