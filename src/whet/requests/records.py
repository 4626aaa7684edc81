"""One request of a log, and the count of lines that are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRequest:
    """One request of a log: chat messages, a plain prompt, or token ids.

    ``place`` is the file and line. ``at_ns`` is Unix time; ``odd_time`` says that the
    line has one that is not understood. ``output`` is the answer's text without
    ``reasoning``; both are None where the log does not hold them. ``tool_calls`` are the answer's.
    ``chat_template_kwargs`` are the request's own variables for the chat template, such as
    ``enable_thinking``. ``sampling`` are its sampling parameters as they were sent, and
    ``max_tokens`` is its own limit on the answer. The token counts are those of the server.
    ``turn`` is the number of the answer in a ShareGPT conversation, from 1.
    """

    place: str
    at_ns: int | None = None
    odd_time: bool = False
    model: str | None = None
    session: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    output: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    turn: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None

    @property
    def greedy(self) -> bool:
        """Whether it asks for temperature 0; where it asks for none, a server samples."""
        return self.sampling.get("temperature") == 0

    @property
    def silent(self) -> bool:
        """Whether its limit is all that it says of the answer's length."""
        known = self.output_tokens is not None or bool(self.output)
        return self.max_tokens is not None and not known


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Lines of a log that are not counted: the reason, how many, and the place of the first."""

    reason: str
    count: int
    first: str


def describe_left_out(records: Iterable[LeftOut]) -> str:
    """Each reason with its count and first place."""
    return ", ".join(f"{each.reason}: {each.count}, first {each.first}" for each in records)


class LeftOutCounts:
    """Counts lines that are left out, by reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, place: str) -> None:
        """Count one more line; the first place of each reason is stored."""
        count, first = self._reasons.get(reason, (0, place))
        self._reasons[reason] = (count + 1, first)

    def records(self) -> tuple[LeftOut, ...]:
        """One record per reason, in the order in which the reasons occurred."""
        return tuple(
            LeftOut(reason=reason, count=count, first=first)
            for reason, (count, first) in self._reasons.items()
        )
