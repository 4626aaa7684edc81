"""The search: how long it may take, and what it is to try or to leave."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from whet.core.spec.base import Strict
from whet.core.units import parse_duration


def _seconds(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


class SearchSpec(Strict):
    """The best configuration within a time, found from the default on by the moves of a playbook.

    ``time`` holds everything: quantizing, the search, checks of answers and the confirmation.
    """

    time: Annotated[
        float,
        BeforeValidator(_seconds),
        Field(gt=0, description="Seconds, or text such as 30m or 2h, for everything."),
    ] = 1800.0
    always: Annotated[
        tuple[str, ...], Field(description="Moves, or families of moves, that are tried first.")
    ] = ()
    never: Annotated[
        tuple[str, ...], Field(description="Moves, or families of moves, that are left out.")
    ] = ()
    heads: Annotated[
        tuple[str, ...],
        Field(description="Heads or drafts trained for the target: folders or hub ids."),
    ] = ()
    checkpoints: Annotated[
        tuple[str, ...],
        Field(description="Quantized checkpoints of the target: folders or hub ids."),
    ] = ()
