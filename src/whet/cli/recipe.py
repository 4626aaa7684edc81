"""A recipe from the command line's flags; what does not go together is said in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from whet.core.errors import UsageError
from whet.core.spec import GROUPED, CalibrationSpec, RecipeSpec

Flags = Mapping[str, Any]

_MIXED: Final = {
    "keep": "--mixed-keep",
    "bits_per_weight": "--bits-per-weight",
    "max_error": "--max-error",
}
_FIELDS: Final = {
    **_MIXED,
    "method": "--method",
    "scheme": "--scheme",
    "group_size": "--group-size",
    "kv_cache": "--kv-cache",
    "samples": "--samples",
    "max_tokens": "--max-tokens",
    "seed": "--seed",
}


def recipe_of(flags: Flags, calibration: CalibrationSpec) -> RecipeSpec:
    """The recipe; a flag that is None was not given.

    ``UsageError`` for a value that is none, or for flags that mean nothing together.
    """
    data: dict[str, Any] = {
        key: flags[f"--{key.replace('_', '-')}"]
        for key in ("method", "scheme", "group_size", "kv_cache")
        if flags[f"--{key.replace('_', '-')}"] is not None
    }
    mixed = {key: flags[flag] for key, flag in _MIXED.items() if flags[flag] is not None}
    if mixed:
        data["mixed"] = mixed
    if flags["--no-clip"]:
        data["clip"] = False
    recipe = _validated({**data, "calibration": calibration.model_dump()})
    if flags["--group-size"] is not None and recipe.scheme not in GROUPED:
        raise UsageError(
            f"--group-size means nothing for {recipe.scheme}, which has one scale a row or matrix; "
            f"leave it out, or choose --scheme {', '.join(GROUPED)}"
        )
    if flags["--no-clip"] and "awq" not in recipe.method:
        raise UsageError(f"--no-clip means nothing for {recipe.method}, which does not clip")
    return recipe


def calibration_of(
    source: Path | None, *, samples: int, max_tokens: int, seed: int
) -> CalibrationSpec:
    """How the calibration text is drawn; its values are checked here."""
    try:
        return CalibrationSpec(source=source, samples=samples, max_tokens=max_tokens, seed=seed)
    except ValidationError as error:
        raise _told(error) from error


def refuse(flags: Flags, reason: str) -> None:
    """``UsageError`` naming the first of ``flags`` that was given, and why it cannot be."""
    for flag, value in flags.items():
        if value is not None:
            raise UsageError(f"{flag} {reason}")


def _validated(data: Mapping[str, Any]) -> RecipeSpec:
    try:
        return RecipeSpec.model_validate(data)
    except ValidationError as error:
        raise _told(error) from error


def _told(error: ValidationError) -> UsageError:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    flag = _FIELDS.get(str(first["loc"][-1])) if first["loc"] else None
    if flag is not None:
        return UsageError(f"{flag}: {message} (got {first['input']!r})")
    for field in ("bits_per_weight", "max_error"):
        message = message.replace(field, _MIXED[field])
    return UsageError(message)
