"""Keys of a spec that the command line replaces: ``load.trials=3``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from whet.core.errors import UsageError
from whet.core.names import did_you_mean


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
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {path}: the value is not YAML", fix="quote it") from error
        _set(data, path, parsed)


def _set(data: dict[str, Any], path: str, value: object) -> None:
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
