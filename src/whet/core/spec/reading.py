"""A spec file read, checked with a sentence for what is wrong in it, and its paths resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from whet.core.errors import UsageError
from whet.core.names import did_you_mean, require_name
from whet.core.outside import read_text, yaml_value
from whet.core.quote import shell_word
from whet.core.redact import is_secret_name, remember_secrets
from whet.core.server_url import split_server_url
from whet.core.spec.base import problem_words
from whet.core.spec.recipe import SCHEMES
from whet.core.spec.traffic import REMOVED_KEYS
from whet.core.spec.variants import UNKNOWN_KEY
from whet.core.spec.whole import Spec

_SCALARS: Final = ("str", "int", "float", "bool")


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML in which a key that occurs twice in a mapping is an error."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Refuse the second occurrence, with its line."""
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} occurs twice; rename or remove one",
                    problem_mark=key.start_mark,
                )
            keys.add(key.value)
        return node


def load_spec(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """Read and check a spec file; relative paths in it count from its own folder.

    ``overrides`` replace keys: ``KEY.PATH=VALUE`` (``apply_overrides``).

    Raises ``UsageError`` naming the key, what is wrong with it and the nearest known key.
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise UsageError(
            f"no spec file at {path}",
            fix=f"write one with: whet init {shell_word(str(path))}, or see it "
            "work first: whet demo",
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"the spec file {path} cannot be read: {error}") from error
    try:
        data = yaml_value(text, _UniqueKeys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = f": {getattr(error, 'problem', error)}"
        if mark and is_secret_name("".join(text.splitlines()[mark.line : mark.line + 1])):
            problem = ", where the value of a secret needs quotes"  # the problem may quote it
        raise UsageError(f"{path} is not valid YAML{where}{problem}") from error
    if not isinstance(data, dict):
        raise UsageError(
            f"{path} must hold keys and values", fix="write a fresh one with: whet init"
        )
    apply_overrides(data, overrides)
    return parse_spec(data, base=path.parent)


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set each ``KEY.PATH=YAML`` in parsed YAML, in place.

    Sections that are not there yet are added; whether the key exists is checked with the rest of
    the spec. A name with dots, such as the variant ``awq.k2``, is taken whole where it exists.
    Raises ``UsageError`` for a text without ``=``, a value that is not YAML, and a path through
    something that has no keys.
    """
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals or not path.strip("."):
            raise UsageError(f"--set {text!r}: give KEY.PATH=VALUE, such as load.trials=3")
        try:
            parsed = yaml_value(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {path}: the value is not YAML", fix="quote it") from error
        _override(data, path, parsed)


def _override(data: dict[str, Any], path: str, value: object) -> None:
    section, parts = data, path.strip().split(".")
    while len(parts) > 1:
        longest = next(
            (n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in section), 1
        )
        name, parts = ".".join(parts[:longest]), parts[longest:]
        below = section.get(name)
        if section is data.get("variants") and name not in section:
            hint = did_you_mean(name, section)
            raise UsageError(f"--set {path}: the spec has no variant {name!r}{hint}")
        if below is None:
            below = section[name] = {}
        if not isinstance(below, dict):
            raise UsageError(
                f"--set {path}: {name} has no keys in this spec", fix=f"set {name} itself"
            )
        section = below
    section[parts[0]] = value


def parse_spec(data: dict[str, Any], *, base: Path) -> Spec:
    """A checked ``Spec`` from parsed YAML, its relative paths made absolute below ``base``.

    Its secrets are redacted from now on in every file and message.
    """
    for text in _texts(data):
        if "\0" in text:
            raise UsageError(f"the spec has a NUL character in {text[:80]!r}", fix="remove it")
    for env in _environments(data):
        remember_secrets({str(name): str(value) for name, value in env.items()})
    try:
        spec = Spec.model_validate(data, context=_context(data, base.resolve()))
    except ValidationError as error:
        sentences = dict.fromkeys(_sentence(item) for item in error.errors())
        raise UsageError("; ".join(list(sentences)[:3])) from error
    require_name(spec.name, "the run's name")
    others = {f"engines.{name}": engine for name, engine in spec.engines.items()}
    for key, engine in {"engine": spec.engine, **others}.items():
        if engine.url is not None:
            split_server_url(engine.url, f"{key}.url")
    for name in spec.recipes:
        require_name(name, "the recipe")
    for name, variant in spec.variants.items():
        require_name(name, "the variant")
        for adapter in variant.loras:
            require_name(adapter, "the adapter")
    variables = {**spec.model.chat_template_kwargs, **spec.quality.chat_template_kwargs}
    quality = spec.quality.model_copy(update={"chat_template_kwargs": variables})
    return spec.model_copy(update={"quality": quality})


def _context(data: Mapping[str, Any], base: Path) -> dict[str, object]:
    """What the fields of a spec need: the folder of its file, and the names of recipes."""
    own = data.get("recipes")
    return {"base": base, "recipes": {"awq", *SCHEMES, *(own if isinstance(own, dict) else ())}}


def _texts(data: object) -> Iterator[str]:
    """Every text in parsed YAML, keys too."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list | tuple):
        for item in data.items() if isinstance(data, dict) else data:
            yield from _texts(item)


def _environments(data: Mapping[str, Any]) -> Iterator[Mapping[Any, Any]]:
    """Every ``env`` of the spec, before it is checked."""
    maps = [data.get("variants"), data.get("engines")]
    sections = [
        data.get("engine"),
        *(x for one in maps if isinstance(one, dict) for x in one.values()),
    ]
    for section in sections:
        if isinstance(section, dict) and isinstance(section.get("env"), dict):
            yield section["env"]


def _sentence(item: ErrorDetails) -> str:
    location = [str(part) for part in item["loc"]]
    if "env" in location[1:3]:  # the value may be a secret
        words = problem_words(item, shown=False)
        name, message = location, f'{words}; write each variable as NAME: "text"'
        if location[-1] == "[key]":
            name, message = location[:-2], words
        return f"{'.'.join(name)}: {message}"
    if location and location[-1] in _SCALARS:  # a flag's value: pydantic reports each of its types
        where = ".".join(location[:-1])
        return f"{where}: a text, a number, true or false is needed (got {item['input']!r})"
    where = ".".join(location) or "the spec"
    if item["type"] == "extra_forbidden":
        return _unknown_key(location)
    if item["type"] == UNKNOWN_KEY:
        unknown, dash, near = item["msg"].partition(";")
        return f"unknown key {unknown} in {where}{dash}{near}"
    if item["type"] == "missing":
        return f"the key {where!r} is missing; add it (whet init shows every key)"
    message = problem_words(item)
    return f"{where}: {message}" if location else message


def _unknown_key(location: list[str]) -> str:
    *section, key = location
    if ".".join(location) in REMOVED_KEYS:
        return REMOVED_KEYS[".".join(location)]
    inside = f" in {'.'.join(section)}" if section else ""
    return f"unknown key {key!r}{inside}{did_you_mean(key, _keys_at(section))}"


def _keys_at(location: list[str]) -> list[str]:
    """The known keys of the section at ``location``, walking through maps by name."""
    model: Any = Spec
    for part in location:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model = field.annotation if field is not None else model
        for inner in getattr(model, "__args__", ()):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return list(getattr(model, "model_fields", {}))
