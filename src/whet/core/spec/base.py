"""Field types and the strict base class of every section of a spec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from whet.core.numbers import LARGEST

SIXTEEN_BIT: Final = "16bit"
"""The target's own weights, in whatever form it is stored."""


def _strict_int(value: object) -> object:
    if isinstance(value, bool | float | str):
        raise ValueError("a whole number is needed")
    return value


def _below(path: Path, info: ValidationInfo) -> Path:
    """``path`` below the folder of the spec's file, which is the ``base`` of the context."""
    base = (info.context or {}).get("base")
    return path if base is None else Path(os.path.normpath(base / os.path.expanduser(path)))


def _local(ref: str, info: ValidationInfo) -> str:
    """A checkpoint: a folder below the spec's file, or a hub id, which stays."""
    if (base := (info.context or {}).get("base")) is None:
        return ref
    path = base / os.path.expanduser(ref)
    return str(path.resolve()) if ref.startswith((".", "/", "~")) or path.is_dir() else ref


def _draft(ref: str, info: ValidationInfo) -> str:
    return ref if ref in (info.context or {}).get("recipes", ()) else _local(ref, info)


File = Annotated[Path, AfterValidator(_below)]
Checkpoint = Annotated[str, AfterValidator(_local)]
Draft = Annotated[str, AfterValidator(_draft)]
"""A checkpoint, or a recipe's name."""
Weights = Annotated[
    str,
    BeforeValidator(lambda v: SIXTEEN_BIT if v == "as_stored" else v),
    AfterValidator(lambda v, info: _local(v, info) if "/" in v else v),
]
"""``as_stored`` is another spelling of ``16bit``."""
Whole = Annotated[int, BeforeValidator(_strict_int)]
Positive = Annotated[Whole, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        """What is larger is a slip of the hand and would never end."""
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and abs(number) > LARGEST:
                raise ValueError(f"at most {LARGEST:,} is possible")
        return value


_WORDS: Final[Mapping[str, str]] = {
    "missing": "the key is missing",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt:,.10g}",
    "greater_than_equal": "must be {ge:,.10g} or more",
    "less_than": "must be below {lt:,.10g}",
    "less_than_equal": "must be {le:,.10g} or less",
    "finite_number": "must be a finite number",
    "too_short": "needs {min_length} or more values",
    "string_type": "must be a text",
    "path_type": "must be a path",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, as in [{input}]"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("dict_type", "model_type"), "must be keys with their values"),
}
"""By pydantic's type of error."""


def problem_words(item: ErrorDetails, *, shown: bool = True) -> str:
    """Return what is wrong with a value, and the value if it is ``shown`` and no mapping."""
    value, words = item["input"], item["msg"].removeprefix("Value error, ")
    if (own := _WORDS.get(item["type"])) is not None:
        words = own.format(**{**item.get("ctx", {}), "input": value if shown else "…"})
    if not shown or isinstance(value, Mapping | BaseModel):
        return words
    return f"{words} (got {value!r})"
