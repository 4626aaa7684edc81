"""Turn an engine's log into one sentence: what happened and what to do."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\)\s*)?(?:\d+\.\d\d\.\d{3}\.\d{3} [DIWE] )?"
    r"(?:(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d [\d:]+ \[[^\]]+\]\s?)?"
)
_EXCEPTION = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\w*): \S")
_LEVEL = re.compile(r"\b(?:INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d ")
_SECOND_HAND = ("EngineDeadError", "Engine core init", "WorkerProc initialization failed")
_SHOWN = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """``kind`` is for code to branch on; ``sentence`` is for people and holds the fix."""

    kind: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureSign:
    """A pattern over the log, and the sentence that its named groups fill in."""

    kind: str
    pattern: re.Pattern[str]
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """How a log shows that the engine failed.

    ``signs`` are the known failures of a start, the most specific first. ``ends_itself`` is printed
    where the engine kills its own processes, so that memory is not suspected; ``lost`` where its
    core has ended under a server that still runs.
    """

    signs: tuple[FailureSign, ...] = ()
    ends_itself: str = "\0"
    lost: tuple[str, ...] = ()


def read_signs(engine: str) -> tuple[FailureSign, ...]:
    """The signs in an engine's ``failures.csv``, the most specific first; case is ignored."""
    return tuple(
        FailureSign(
            kind=row["kind"],
            pattern=re.compile(row["pattern"], re.IGNORECASE),
            sentence=row["sentence"],
        )
        for row in read_table(engine, "failures")
    )


RETRIED: Final = frozenset({"port", "busy_memory"})
"""Failures of the surroundings, not of the configuration: tried once more."""


def plain_lines(log: str) -> list[str]:
    """The log's lines without colours and without the engine's process, level and time prefix."""
    return [_PREFIX.sub("", line, count=1) for line in _ANSI.sub("", log).splitlines()]


def diagnose(log: str, signs: Sequence[FailureSign]) -> Failure | None:
    """The known failure that the log shows, else its last exception, else None.

    The first sign that matches wins; the list goes from specific to vague, because the server
    repeats a fault of its engine core in vaguer words.
    """
    lines = plain_lines(log)
    text = "\n".join(lines)
    for sign in signs:
        if match := sign.pattern.search(text):
            return Failure(kind=sign.kind, sentence=sign.sentence.format(**match.groupdict()))
    exception = _last_exception(lines)
    if exception is None:
        return None
    return Failure(kind="other", sentence=f"it reported: {exception}")


def _last_exception(lines: list[str]) -> str | None:
    """The innermost exception: those that only report another process' death come last."""
    lines = [line.strip()[:_SHOWN] for line in lines if _EXCEPTION.match(line)]
    own = [line for line in lines if not any(word in line for word in _SECOND_HAND)]
    return (own or lines)[-1] if lines else None


def last_words(log: str) -> str:
    """The last thing that the engine logged, else its last line with a word in it."""
    logged = [line for line in log.splitlines() if _LEVEL.search(line)]
    for candidates in (plain_lines("\n".join(logged)), plain_lines(log)):
        lines = [line.strip() for line in candidates if re.search(r"\w", line)]
        if lines:
            return lines[-1][:_SHOWN]
    return "nothing"


def read_table(engine: str, name: str) -> list[dict[str, str]]:
    """The rows of ``NAME.csv`` in an engine's folder; empty for an engine without one."""
    file = resources.files("whet.engines").joinpath(engine, f"{name}.csv")
    if not file.is_file():
        return []
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
