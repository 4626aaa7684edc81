"""Side effects of a lever: settings that changed, a smaller KV pool, kernels compiled late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.load import Load
from whet.core.records.evidence import EngineFacts, LeverCost, TrialNotices
from whet.core.records.summary import CellSummary
from whet.levers import start_side_effects

HIT_POINTS: Final = 0.01
"""A hit rate lower than the reference's by more than a point is a side effect."""

_WORDS: Final = (
    ("Model Runner V2", "older model runner"),
    ("Overriding cudagraph_mode", "another CUDA-graph mode"),
    ("during inference", "a kernel was compiled while serving"),
    ("max_num_scheduled_tokens", "fewer tokens a step"),
    ("Failed to", "a fallback"),
    ("precluded higher-priority backend", "another attention backend"),
    ("Cannot use", "another attention backend"),
    ("setting cudagraph_mode", "another CUDA-graph mode"),
)
"""Words in a log line that reveal a side effect, and its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What a variant's first start, its trials and its cells showed."""

    variant: str
    facts: EngineFacts
    trials: Sequence[TrialNotices] = ()
    cells: Sequence[CellSummary] = ()


def side_effects_of(
    mine: Observed, reference: Observed, levers: Sequence[str]
) -> tuple[LeverCost, ...]:
    """Side effects of ``levers``, by which ``mine`` and ``reference`` differ.

    Only what was observed for both is compared.
    """

    def cost(what: str, detail: str, load: Load | None = None) -> LeverCost:
        return LeverCost(
            variant=mine.variant,
            reference=reference.variant,
            levers=tuple(sorted(levers)),
            what=what,
            detail=detail,
            load=load,
        )

    effects = [cost(what, detail) for what, detail in _of_start(mine.facts, reference.facts)]
    effects += [cost(what, detail, size) for what, detail, size in _of_trials(mine, reference)]
    effects += [cost(what, detail, size) for what, detail, size in _of_cells(mine, reference)]
    return tuple(effects)


def _of_start(mine: EngineFacts, theirs: EngineFacts) -> Iterator[tuple[str, str]]:
    for line in mine.notices:
        name = next((name for word, name in _WORDS if word in line), None)
        if name is not None and not any(_alike(line, other) for other in theirs.notices):
            yield name, line
    yield from start_side_effects(mine, theirs)


def _alike(line: str, other: str) -> bool:
    """The same notice, whatever names and numbers it carries."""
    return _gist(line)[:40] == _gist(other)[:40]


def _gist(line: str) -> str:
    """The part of a notice that identifies it: the words before the details, or a kernel's name."""
    head, _, rest = line.partition(":")
    return rest.strip().split(". ", maxsplit=1)[0] if "during inference" in head else head


def _of_trials(mine: Observed, theirs: Observed) -> Iterator[tuple[str, str, Load]]:
    """Notices that came while the clock ran, once a concurrency."""
    known = {_gist(line) for trial in theirs.trials for line in trial.notices}
    reported = set[tuple[Load, str]]()
    for trial in mine.trials:
        for line in trial.notices:
            word = _gist(line)
            if word not in known and (trial.load, word) not in reported:
                reported.add((trial.load, word))
                name = next((name for key, name in _WORDS if key in line), "a notice in the window")
                yield name, line, trial.load


def _of_cells(mine: Observed, theirs: Observed) -> Iterator[tuple[str, str, Load]]:
    references = {cell.load: cell for cell in theirs.cells}
    for cell in mine.cells:
        reference = references.get(cell.load)
        if reference is None or cell.prefix_hit_rate is None or reference.prefix_hit_rate is None:
            continue
        if reference.prefix_hit_rate - cell.prefix_hit_rate > HIT_POINTS:
            detail = f"{cell.prefix_hit_rate:.1%}, {reference.prefix_hit_rate:.1%} without"
            yield "a lower prefix hit rate", detail, cell.load
