"""Field types and the strict base class of every section of a spec."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from whet.core.numbers import LARGEST

SIXTEEN_BIT: Final = "16bit"
"""The target's own weights, in whatever form it is stored."""


def _strict_int(value: object) -> object:
    if isinstance(value, bool | float | str):
        raise ValueError("a whole number is needed")
    return value


Weights = Annotated[str, BeforeValidator(lambda v: SIXTEEN_BIT if v == "as_stored" else v)]
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
