"""A spec without its secrets, as it is stored in a run directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from whet.core.redact import REDACTED, redact, shown_env

_SECRET_ARGS: Final = ("api_key", "hf_token")
"""Flags of vLLM that hold a secret; a spec with one is refused."""


def redacted_spec(data: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped spec with its secret variables redacted."""

    def shown(items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {**item, "env": shown_env(item["env"])} for name, item in items.items()}

    engines = {"engines": shown(data["engines"])} if "engines" in data else {}
    return {
        **data,
        **shown({"engine": data["engine"]}),
        **engines,
        "variants": shown(data["variants"]),
    }


def redacted_source(path: Path) -> bytes:
    """A spec file with its secrets redacted; comments and layout stay."""
    text = path.read_text(encoding="utf-8")
    nodes = {
        node.start_mark.index: node for node in _secret_nodes(yaml.compose(text), inside=False)
    }
    for start, node in sorted(nodes.items(), reverse=True):
        end = start + len(text[start : node.end_mark.index].rstrip())
        text = f'{text[:start]}"{REDACTED}"{text[end:]}'
    return redact(text).encode()


def _secret_nodes(node: yaml.Node | None, *, inside: bool) -> Iterator[yaml.Node]:
    """The values of secret variables below a key ``env``, and of secret flags anywhere."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _secret_nodes(item, inside=inside)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = str(key.value)
        if not isinstance(value, yaml.ScalarNode):
            yield from _secret_nodes(value, inside=inside or name == "env")
        elif name.replace("-", "_") in _SECRET_ARGS or (
            inside and shown_env({name: value.value})[name] == REDACTED
        ):
            yield value
