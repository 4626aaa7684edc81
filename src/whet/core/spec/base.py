"""Field types and the strict base class of every section of a spec."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

SIXTEEN_BIT: Final = "16bit"


def _strict_int(value: object) -> object:
    if isinstance(value, bool | float | str):
        raise ValueError("a whole number is needed")
    return value


Whole = Annotated[int, BeforeValidator(_strict_int)]
Positive = Annotated[Whole, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
