"""What to try next: from what was measured so far to the servers of the next wave.

Pure functions of the history, so that a search can be resumed and replayed. A search begins with
the best that the playbook knows for weights and for speculation, and goes on from the cheapest
configuration by the moves that promise most: by the playbook before a move was tried, by what it
brought elsewhere after that. What is left of the time undoes the changes one by one, because a
change that was worth it when it was adopted need not be in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from whet.core.load import Load
from whet.core.records.search import Standing, Worth
from whet.core.spec import SIXTEEN_BIT, SearchSpec
from whet.flow.run.search.changes import Value
from whet.flow.run.search.playbook import MOVES, Move, Option, options
from whet.flow.run.search.values import changes, key_of, name_of, neighbours
from whet.flow.run.situation import Situation

ALIKE: Final = 1.02
"""Cost ratio of two single starts that is not taken for a difference: the fewer changes win."""
_WORTH_A_START: Final = 1.005
"""Expected cost before ÷ after, below which the adopted changes are undone before it is tried."""
_LONG_SHOT: Final = 0.9
"""Expected cost before ÷ after, below which a move is not tried at all: gains are guesses."""
_CALLED_FOR: Final = 1.04
"""What a measured limit that a move helps with adds to its promise."""
_TRUST: Final = 0.7
"""How much of what a move brought elsewhere is expected of it here."""
_ACCEPTED: Final = (0.55, 0.8)
"""Shares of accepted drafts below which fewer are drafted, and above which more."""
_WEIGHTS: Final = "weights"
"""End of the names of the families of weights."""
_DRAFTS: Final = "speculation"
_FOUR_BITS: Final = "4-bit weights"
"""Fail the gate more often: where they open, 8 bits open, too."""
_RESCUED: Final = 0.9
"""Cost of a cell that misses a limit ÷ the best that misses none, up to which it is worth fixing."""
UNDO: Final = "undo"
_BY_NAME: Final = {move.name: move for move in MOVES}

Refuse = Callable[[Value], str | None]
"""Why a configuration cannot run here; None where it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One configuration that was tried.

    ``usd`` is the cost of its cheapest cell that meets the limits by its figures, in the unit that
    the decision ranks by; None where none does. ``load`` is that cell's, ``in_flight`` the requests
    in flight there, ``limit`` what limits it, ``accepted`` the share of drafts that were accepted.
    ``failed`` says why it has no figures, ``answers`` what the gate said. ``lowest_usd`` is the
    cheapest cell's whatever the limits, and ``missed`` the limits that it misses (``TTFT``, ``TPOT``
    and so on).
    """

    name: str
    value: Value
    move: str | None = None
    base: str | None = None
    usd: float | None = None
    load: Load | None = None
    in_flight: float = 1.0
    limit: str | None = None
    accepted: float | None = None
    lowest_usd: float | None = None
    missed: frozenset[str] = frozenset()
    failed: str | None = None
    answers: Literal["pass", "fail"] | None = None

    @property
    def counts(self) -> bool:
        """Whether it may be what the search ends with."""
        return self.usd is not None and self.answers != "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A configuration to try: how it came about, and what it promises (cost before ÷ after)."""

    name: str
    value: Value
    move: str
    base: str
    why: str
    promise: float


def incumbent(history: Sequence[Outcome]) -> Outcome | None:
    """Return the configuration to go on from: the cheapest, of those alike the least changed."""
    counted = [each for each in history if each.counts]
    if not counted:
        return None
    cheapest = min(each.usd for each in counted if each.usd is not None)
    alike = [each for each in counted if each.usd is not None and each.usd <= cheapest * ALIKE]
    root = history[0].value
    return min(alike, key=lambda each: (len(changes(each.value, root)), each.usd))


def next_loads(history: Sequence[Outcome], points: Sequence[Load]) -> tuple[Load, ...]:
    """Return the loads to measure next.

    At first all, for the opening all from one below the cheapest on, because what it tries may
    serve many more requests at once; then the cheapest and the next larger, or the two largest.
    """
    ordered, best = sorted(points), incumbent(history)
    if not history:
        return tuple(ordered)
    place = 0 if best is None or best.load not in ordered else ordered.index(best.load)
    if _is_opening(history):
        return tuple(ordered[max(0, place - 1) :])
    place = max(0, min(place, len(ordered) - 2))
    return tuple(ordered[place : place + 2])


def next_wave(
    situation: Situation,
    history: Sequence[Outcome],
    spec: SearchSpec,
    width: int,
    refuse: Refuse = lambda _: None,
) -> tuple[list[Candidate], list[Option]]:
    """Return at most ``width`` configurations to try, best promise first, and what is not tried.

    ``refuse`` says why a configuration cannot run here, None where it can. Nothing is returned
    where no move promises anything and every change was undone once. The history begins with where
    the search began.
    """
    base = incumbent(history) or history[0]
    known = {key_of(each.value) for each in history}
    left_out: list[Option] = []
    ended = set(_ended_families(history))
    pool: list[tuple[float, Option]] = []
    for option in (*options(situation, base.value, spec), *_instead(situation, base, spec)):
        promise = _promise(option, base, history)
        if option.value is None:
            left_out.append(option)
        elif option.move.family in ended:
            left_out.append(_not(option, f"{ended_words(option.move.family)} failed the gate"))
        elif key_of(option.value) in known:
            continue
        elif promise < _LONG_SHOT and not option.first:
            left_out.append(
                _not(option, f"costs {1 / promise:.2f} times as much, as expected here")
            )
        else:
            if reason := refuse(option.value):
                left_out.append(_not(option, reason))
            pool.append((promise, option))
    pool.sort(key=lambda each: (not each[1].first, -each[0]))
    ranked = [(each[1], _candidate(each[1], base, each[0], situation)) for each in pool]
    chosen = [candidate for option, candidate in ranked if option.first]
    chosen += _rescues(situation, base, history, spec)
    good = [each for _, each in ranked if each.promise >= _WORTH_A_START]
    if _is_opening(history):
        chosen += _opening(situation, base, pool, history, spec)
    elif good:
        chosen += (good[0], *_then(situation, good[0], base, history, spec))
    chosen += good
    chosen += _undone(base, history, situation)
    chosen += (each for _, each in ranked)
    unique: dict[str, Candidate] = {}
    for each in chosen:
        if key_of(each.value) not in known and refuse(each.value) is None:
            unique.setdefault(key_of(each.value), each)
    return list(unique.values())[:width], left_out


def _is_opening(history: Sequence[Outcome]) -> bool:
    return not any(each.move for each in history)


def ended_words(family: str) -> str:
    """Name a family whose answers were wrong."""
    return f"of {family} another configuration"


def _not(option: Option, reason: str) -> Option:
    return Option(move=option.move, value=None, reason=reason, first=option.first)


def _candidate(option: Option, base: Outcome, promise: float, situation: Situation) -> Candidate:
    assert option.value is not None
    return Candidate(
        name=name_of(option.value, situation),
        value=option.value,
        move=option.move.name,
        base=base.name,
        why=option.reason,
        promise=promise,
    )


def _opening(
    situation: Situation,
    base: Outcome,
    pool: Sequence[tuple[float, Option]],
    history: Sequence[Outcome],
    spec: SearchSpec,
) -> Iterator[Candidate]:
    """Yield the best weights, the best speculation with them, and that with the next best weights.

    The best are those that promise most together; what is verified needs the weights alone, too.
    """
    drafts = next((each for each in pool if each[1].move.family == _DRAFTS), None)
    pairs: dict[str, tuple[float, float, Option]] = {}
    for promise, option in pool:
        if option.move.family.endswith(_WEIGHTS) and option.move.family not in pairs:
            both = promise
            if drafts is not None and drafts[1].value is not None:
                drafting = replace(base, value=drafts[1].value)
                both = drafts[0] * _promise(option, drafting, history)
            pairs[option.move.family] = (both, promise, option)
    ordered = sorted(pairs.values(), key=lambda each: (not each[2].first, -each[0]))[:2]
    found: list[Candidate] = []
    for both, promise, weights in ordered:
        alone = _candidate(weights, base, promise, situation)
        pair = None if drafts is None else _with(drafts[1].move, alone, base, both, situation, spec)
        if not found:
            found += (alone, pair) if pair else (alone,)
            if weights.move.family != _FOUR_BITS:
                yield from found
                yield from _then(situation, found[-1], base, history, spec)
                return
        elif pair is not None:
            found.append(replace(pair, move=weights.move.name, base=found[-1].name, why=alone.why))
    yield from found


def _with(
    move: Move,
    first: Candidate,
    base: Outcome,
    promise: float,
    situation: Situation,
    spec: SearchSpec,
) -> Candidate | None:
    """Return the first way of a move from a configuration that is not measured yet."""
    single = replace(base, name=first.name, value=first.value)
    for option in options(situation, first.value, spec):
        if option.move is move and option.value is not None:
            return _candidate(option, single, promise, situation)
    return None


def _then(
    situation: Situation,
    first: Candidate,
    base: Outcome,
    history: Sequence[Outcome],
    spec: SearchSpec,
) -> Iterator[Candidate]:
    """Yield ``first`` with the move that promises most on top of it: two changes in one wave."""
    single = replace(base, name=first.name, value=first.value)
    family = _BY_NAME[first.move].family
    further = [
        (_promise(option, single, history), option)
        for option in options(situation, first.value, spec)
        if option.value is not None and option.move.family not in (family, _DRAFTS)
    ]
    promise, option = max(further, key=lambda each: each[0], default=(0.0, None))
    if option is not None and promise >= _WORTH_A_START:
        yield _candidate(option, single, promise * first.promise, situation)


def _rescues(
    situation: Situation, base: Outcome, history: Sequence[Outcome], spec: SearchSpec
) -> Iterator[Candidate]:
    """Yield what may bring the cheapest configuration of all within the limit that it misses."""
    priced = [each for each in history if each.lowest_usd is not None and each.answers != "fail"]
    lowest = min(priced, key=lambda each: each.lowest_usd or math.inf, default=None)
    if lowest is None or not lowest.missed or lowest.lowest_usd is None:
        return
    if base.usd is not None and lowest.lowest_usd > base.usd * _RESCUED:
        return
    for option in options(situation, lowest.value, spec):
        if option.value is not None and option.move.helps & lowest.missed:
            yield _candidate(option, lowest, 1 / _RESCUED, situation)


def _instead(situation: Situation, base: Outcome, spec: SearchSpec) -> Iterator[Option]:
    """Yield what else could draft; what drafts by the same method has the same K."""
    own = base.value.get("speculation")
    if own is None:
        return
    without = {name: item for name, item in base.value.items() if name != "speculation"}
    for option in options(situation, without, spec):
        if option.move.family == _DRAFTS and option.value is not None:
            other = option.value["speculation"]
            if other["method"] == own["method"]:
                other = {**other, "num_tokens": own["num_tokens"]}
            yield replace(option, value={**option.value, "speculation": other})


def _promise(option: Option, base: Outcome, history: Sequence[Outcome]) -> float:
    """Expected cost before ÷ after of a move from ``base``."""
    expected = _gain(option.move, base, history)
    if (other := _replaced(option.move, base.value)) is not None:
        expected -= _gain(other, base, history)
    if base.limit in option.move.helps:
        expected += math.log(_CALLED_FOR)
    few, many = _ACCEPTED
    if base.accepted is not None and option.move.name in ("k-up", "k-down"):
        up = option.move.name == "k-up"
        calls = (base.accepted > many) - (base.accepted < few)
        expected += math.log(_CALLED_FOR) * (calls if up else -calls)
    return math.exp(expected)


def _gain(move: Move, base: Outcome, history: Sequence[Outcome]) -> float:
    """Logarithm of cost before ÷ after: the playbook's, and what the move brought so far.

    What weights bring depends on the tokens of a step, and drafts are verified in it.
    """
    tokens = base.in_flight
    if move.family.endswith(_WEIGHTS):
        tokens *= 1 + base.value.get("speculation", {}).get("num_tokens", 0)
    expected = math.log(move.expected(tokens))
    if seen := ratios(move, history):
        expected = (1 - _TRUST) * expected + _TRUST * sum(map(math.log, seen)) / len(seen)
    return expected


def _replaced(move: Move, value: Value) -> Move | None:
    """Return the move to the weights or drafts of ``value`` whose place ``move`` takes."""
    if move.family.endswith(_WEIGHTS) and value.get("weights", SIXTEEN_BIT) != SIXTEEN_BIT:
        name = "w4a16" if "kernels" in value and value["weights"] == "int4" else value["weights"]
        return _BY_NAME.get(name, _BY_NAME["checkpoint"])
    if move.family == _DRAFTS and "speculation" in value:
        method = value["speculation"]["method"]
        return _BY_NAME.get("draft" if method == "draft_model" else method, _BY_NAME["head"])
    return None


def ratios(move: Move, history: Sequence[Outcome]) -> list[float]:
    """Return cost without a move ÷ with it wherever it was measured on both sides."""
    by_name = {each.name: each for each in history}
    found = []
    for each in history:
        base = by_name.get(each.base or "")
        if each.move != move.name or base is None or not (each.failed or base.usd):
            continue
        # What does not run, or misses limits that its base meets, costs twice as much.
        ratio = base.usd / each.usd if base.usd and each.usd else 0.5
        other = _replaced(move, base.value)
        found.append(ratio * (1.0 if other is None else other.expected(base.in_flight)))
    return found


def _ended_families(history: Sequence[Outcome]) -> Iterator[str]:
    for each in history:
        if each.answers == "fail" and each.move in _BY_NAME:
            yield _BY_NAME[each.move].family


def _undone(base: Outcome, history: Sequence[Outcome], situation: Situation) -> Iterator[Candidate]:
    """Yield the incumbent without each change whose worth no neighbour shows, largest first."""
    root = history[0]
    for change, value in neighbours(base.value, root.value):
        if find(value, history) is None:
            yield Candidate(
                name=name_of(value, situation),
                value=value,
                move=f"{UNDO} {change}",
                base=base.name,
                why=f"what {change} is worth with all the rest",
                promise=1.0,
            )


def worths(best: Outcome, history: Sequence[Outcome]) -> tuple[Worth, ...]:
    """Return what each change of ``best`` is worth, from neighbours that were measured."""
    found = []
    for change, value in neighbours(best.value, history[0].value):
        without = find(value, history)
        name = None if without is None else without.name
        found.append(Worth(change=change, without=name, ratio=_ratio(without, best)))
    return tuple(found)


def _ratio(dearer: Outcome | None, cheaper: Outcome) -> float | None:
    """Cost of one ÷ cost of the other; None where one has none."""
    if dearer is None or dearer.usd is None or not cheaper.usd:
        return None
    return dearer.usd / cheaper.usd


def standing(outcome: Outcome, history: Sequence[Outcome]) -> tuple[Standing, float | None]:
    """Return what became of a configuration, and its base's cost ÷ its own."""
    base = next((each for each in history if each.name == outcome.base), None)
    ratio = _ratio(base, outcome)
    if outcome.failed is not None:
        return "failed", None
    if outcome.answers == "fail":
        return "wrong answers", ratio
    if outcome.usd is None:
        return "misses", None
    if outcome.base is None:
        return "start", None
    if ratio is None or ratio > ALIKE:
        return "adopted", ratio
    return ("not separated", ratio) if ratio >= 1 / ALIKE else ("worse", ratio)


def find(value: Value, history: Sequence[Outcome]) -> Outcome | None:
    """Return the outcome of a configuration; None where it was not tried."""
    wanted = key_of(value)
    return next((each for each in history if key_of(each.value) == wanted), None)
