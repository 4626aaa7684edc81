"""The detectors' state, period by period, and the journal on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from whet.core.errors import StorageError
from whet.core.outside import read_json
from whet.core.records.codec import decode, encode
from whet.core.records.envelope import Envelope
from whet.core.store import append_line, translate_disk_errors, write_json
from whet.watch.causes import Finding, diagnose
from whet.watch.detectors import DAY_S, Cusum, DayShare, Learned, LengthDrift, Repeated
from whet.watch.mismatches import mismatches
from whet.watch.observation import (
    GOLDEN_PER_PERIOD,
    OUTPUT_LENGTHS,
    PROMPT_LENGTHS,
    Observation,
    Scrape,
    Window,
    length_counts,
    window_between,
)
from whet.watch.signals import (
    Reading,
    References,
    fallen,
    learn,
    readings,
    shares,
)

_STATE: Final = "state.json"
_JOURNAL: Final = "journal.jsonl"
_RESTARTS: Final = 3
_RETURNS: Final = 2
_WITHIN_S: Final = 3600.0
_HARMLESS: Final = ("load", "traffic", "machine")
"""Changes during which a fixed prompt is still answered as before, so that it may be learned."""
_SILENCES: Final = ("unreachable", "unauthorized", "hung")
"""They hide all others, and one answer ends them."""
_SURE: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchState:
    """Everything that one period hands to the next; stored, so that a restart goes on.

    ``raised`` maps each present cause to when it began (seconds since the epoch), ``words`` each
    detector to its last figure, ``cursor`` is the next golden probe. ``restarts`` are the times of
    the engine's restarts within the last hour, ``returns`` those at which an older process answered
    again after a newer one, which began at ``newest_start``.
    """

    run: str
    variant: str
    periods: int = 0
    cusums: Mapping[str, Cusum] = field(default_factory=dict)
    repeated: Mapping[str, Repeated] = field(default_factory=dict)
    prompt_lengths: LengthDrift = field(default_factory=LengthDrift)
    output_lengths: LengthDrift = field(default_factory=LengthDrift)
    days: Mapping[str, DayShare] = field(default_factory=dict)
    learned: Mapping[str, Learned] = field(default_factory=dict)
    chat_prompt_tokens: int | None = None
    last: Scrape | None = None
    newest_start: float | None = None
    restarts: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    raised: Mapping[str, float] = field(default_factory=dict)
    cursor: int = 0

    def active(self) -> dict[str, str]:
        """Every detector that alarms, with its last figure in words."""
        names = [name for name, cusum in self.cusums.items() if cusum.active]
        names += [name for name, count in self.repeated.items() if count.active]
        names += [f"{name}_day" for name, day in self.days.items() if day.below]
        names += ["prompt_lengths"] * self.prompt_lengths.active
        names += ["output_lengths"] * self.output_lengths.active
        return {name: self.words.get(name, name) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """What one period came to. ``begun`` and ``ended`` are causes that were not so before."""

    state: WatchState
    window: Window | None
    readings: tuple[Reading, ...]
    mismatches: Mapping[str, str]
    findings: tuple[Finding, ...]
    begun: tuple[Finding, ...]
    ended: tuple[str, ...]


def advance(state: WatchState, look: Observation, references: References) -> Period:
    """The state after one more period, and what it found. A pure function."""
    window = window_between(state.last, look.before) if state.last and look.before else None
    state = _processes(state, look)
    every = tuple(readings(look, window, references, state.learned))
    wrong = mismatches(look, window, references, state.chat_prompt_tokens)
    if len(state.returns) >= _RETURNS:
        wrong["several_engines"] = "answers come from two processes in turn"
    if len(state.restarts) >= _RESTARTS:
        wrong["restart_loop"] = f"{len(state.restarts)} restarts of the engine within an hour"
    state = _with_lengths(_count(state, look, every, wrong), look, references)
    state = _with_days(state, look, window, references.envelope)
    findings = tuple(diagnose(state.active()))
    if all(item.cause.what in _HARMLESS for item in findings):
        state = replace(
            state,
            learned=learn(look, references.envelope, state.learned),
            chat_prompt_tokens=state.chat_prompt_tokens or look.chat_prompt_tokens,
        )
    names = [item.cause.name for item in findings]
    raised = {name: state.raised.get(name, look.at_s) for name in names}
    return Period(
        state=replace(
            state,
            periods=state.periods + 1,
            cursor=state.cursor + GOLDEN_PER_PERIOD * (look.answers is not None),
            last=look.after or look.before or state.last,
            raised=raised,
        ),
        window=window,
        readings=every,
        mismatches=wrong,
        findings=findings,
        begun=tuple(item for item in findings if item.cause.name not in state.raised),
        ended=tuple(name for name in state.raised if name not in raised),
    )


def _processes(state: WatchState, look: Observation) -> WatchState:
    """Count restarts, and answers of a process that a newer one should have replaced.

    What was summed up of an earlier process says nothing of a new one.
    """
    start = None if look.before is None else look.before.process_start
    if start is None:
        return state
    newest, last = state.newest_start, state.last and state.last.process_start
    restarts = [at for at in state.restarts if look.at_s - at < _WITHIN_S]
    returns = [at for at in state.returns if look.at_s - at < _WITHIN_S]
    if newest is not None and start > newest:
        restarts.append(look.at_s)
        state = replace(state, cusums={})
    elif newest is not None and start < newest and start != last:
        returns.append(look.at_s)
    return replace(
        state,
        newest_start=start if newest is None else max(start, newest),
        restarts=tuple(restarts),
        returns=tuple(returns),
    )


def _count(
    state: WatchState, look: Observation, every: tuple[Reading, ...], wrong: Mapping[str, str]
) -> WatchState:
    cusums = dict(state.cusums)
    for reading in every:
        cusums[reading.signal] = cusums.get(reading.signal, Cusum()).add(reading.z)
    # What only a probe shows stays as it is in a period without that probe.
    unsent = {name for name, sent in _probed(look).items() if not sent}
    repeated = {
        name: state.repeated.get(name, Repeated()).add(present=name in wrong)
        for name in {**state.repeated, **wrong}
        if name not in unsent
    }
    same = {name: count for name, count in state.repeated.items() if name in unsent}
    words = {**state.words, **{x.signal: x.words for x in every}, **wrong}
    return replace(
        state,
        cusums=cusums,
        repeated=same
        | {
            name: count
            for name, count in repeated.items()
            if count.count and (name in wrong or name not in _SILENCES)
        },
        words=words,
    )


def _probed(look: Observation) -> dict[str, bool]:
    """Mismatches that need a probe, and whether it was sent."""
    streamed = look.speed is not None or look.speed_error is not None
    return {
        "hung": streamed,
        "probe_failed": streamed,
        "answers_broken": look.answers is not None,
        "answers_unread": look.answers is not None,
        "chat_template_changed": look.chat_prompt_tokens is not None,
    }


def _with_days(
    state: WatchState, look: Observation, window: Window | None, envelope: Envelope
) -> WatchState:
    """Add one window's shares to their day, and judge a day that is over."""
    days, words = dict(state.days), dict(state.words)
    for signal, share in () if window is None else shares(window, envelope):
        day = days.get(signal, DayShare(began_s=look.at_s))
        if 0 <= look.at_s - day.began_s < DAY_S:
            days[signal] = replace(day, share=day.share + share)
            continue
        reading = fallen(signal, day.share, envelope, day=True)
        words[reading.signal] = reading.words
        days[signal] = DayShare(began_s=look.at_s, below=reading.z > _SURE)
    return replace(state, days=days, words=words)


def _with_lengths(state: WatchState, look: Observation, references: References) -> WatchState:
    if state.last is None or look.before is None:
        return state
    words = dict(state.words)
    drifts: dict[str, LengthDrift] = {}
    for name, histogram in (("prompt", PROMPT_LENGTHS), ("output", OUTPUT_LENGTHS)):
        reference = getattr(references.envelope, f"{name}_tokens")
        drift: LengthDrift = getattr(state, f"{name}_lengths")
        counts = length_counts(state.last, look.before, histogram, reference)
        drifts[name] = drift if counts is None else drift.add(counts, reference)
        if drifts[name].index is not None:
            words[f"{name}_lengths"] = (
                f"lengths of {name}s differ from the run's by a stability index of "
                f"{drifts[name].index:.2f} (0.25 is a change)"
            )
    return replace(
        state, prompt_lengths=drifts["prompt"], output_lengths=drifts["output"], words=words
    )


class Journal:
    """A folder with ``state.json`` and ``journal.jsonl``.

    A full disk never stops the watch: what cannot be written is counted in ``dropped``, and
    ``problem`` has the reason until that file is written again.
    """

    def __init__(self, folder: Path) -> None:
        """The folder is made where it is missing; ``StorageError`` where that fails."""
        with translate_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.dropped = 0
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Why a file could not be written at its last attempt; None where both could."""
        return next(iter(self._problems.values()), None)

    def read_state(self, run: str, variant: str) -> WatchState:
        """The stored state of this deployment; a new one for another, or where it is damaged.

        ``problem`` says that it is damaged.
        """
        fresh, path = WatchState(run=run, variant=variant), self.folder / _STATE
        try:
            state = decode(WatchState, read_json(path, infinite=True))  # edges
        except FileNotFoundError:
            return fresh
        except (OSError, ValueError, StorageError) as error:
            self._problems[_STATE] = f"{path} cannot be read, so the watch begins anew ({error})"
            return fresh
        return state if (state.run, state.variant) == (run, variant) else fresh

    def write_state(self, state: WatchState) -> None:
        """Store the state, whole or not at all."""
        self._attempt(_STATE, lambda: write_json(self.folder / _STATE, encode(state)))

    def add(self, kind: str, at: str, entry: Mapping[str, Any]) -> None:
        """Append one line. The file is opened anew each time, so that it may be rotated."""
        line = {"at": at, "kind": kind, **entry}
        self._attempt(_JOURNAL, lambda: append_line(self.folder / _JOURNAL, line))

    def _attempt(self, name: str, write: Callable[[], None]) -> None:
        try:
            write()
        except StorageError as error:
            self.dropped += 1
            self._problems[name] = str(error)
        else:
            self._problems.pop(name, None)
