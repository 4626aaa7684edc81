"""What to try next: from what was measured so far to the servers of the next wave.

Pure functions of the history, so that a search can be resumed and replayed. A search begins with
the best that the playbook knows for weights and for speculation, and goes on from the cheapest
configuration by the moves that promise most: by the playbook before a move was tried, by what it
brought elsewhere after that. What is left of the time undoes the changes one by one, because a
change that was worth it when it was adopted need not be in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from whet.core.load import Load
from whet.core.spec import SIXTEEN_BIT, SearchSpec
from whet.flow.run.search.changes import Value
from whet.flow.run.search.outcomes import Outcome, find, incumbent
from whet.flow.run.search.playbook import MOVES, Move, Option, options
from whet.flow.run.search.values import distinct_name, key_of, name_of, neighbours
from whet.flow.run.situation import Situation

_WORTH_A_START: Final = 1.005
"""Expected cost before ÷ after, below which the adopted changes are undone before it is tried."""
_LONG_SHOT: Final = 0.8
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
_RESCUED: Final = 0.95
"""Cost of a cell that misses a limit ÷ the best that misses none, up to which it is repaired."""
_FAILS: Final = 0.5
_MISSES: Final = 0.8
"""Cost before ÷ after taken for a move that did not run, and that missed what its base meets."""
_MANY_LOADS: Final = 4
UNDO: Final = "undo"
_BY_NAME: Final = {move.name: move for move in MOVES}

Refuse = Callable[[Value], str | None]
"""Why a configuration cannot run here; None where it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A configuration to try: how it came about, and what it promises (cost before ÷ after)."""

    name: str
    value: Value
    move: str
    base: str
    why: str
    promise: float


def next_loads(history: Sequence[Outcome], points: Sequence[Load]) -> tuple[Load, ...]:
    """Return the loads to measure next.

    At first all, for the opening all from one below the cheapest on, because what it tries may
    serve many more requests at once (every second of many); then the cheapest and the next larger,
    or the two largest.
    """
    ordered, best = sorted(points), incumbent(history)
    if not history:
        return tuple(ordered)
    place = 0 if best is None or best.load not in ordered else ordered.index(best.load)
    if _is_opening(history):
        span = ordered[max(0, place - 1) :]
        return tuple(span if len(span) <= _MANY_LOADS else span[::-1][::2][::-1])
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
    ended = {
        _BY_NAME[each.move].family
        for each in history
        if each.answers == "fail" and each.move in _BY_NAME
    }
    pool, left_out = _moves(situation, base, history, spec, ended)
    refused = ((each, refuse(_value(each))) for _, each in pool)
    left_out += (replace(each, value=None, reason=why) for each, why in refused if why)
    known = {key_of(each.value) for each in history}

    def fits(candidate: Candidate) -> bool:
        move = _BY_NAME.get(candidate.move)
        new = key_of(candidate.value) not in known and refuse(candidate.value) is None
        return new and (move is None or move.family not in ended)

    ordered = _ordered(situation, base, pool, history, spec)
    chosen = list(filter(fits, ordered + _long_shots(situation, base, history, spec, ended)))
    if chosen and not _is_opening(history) and chosen[0].move in _BY_NAME:
        further = filter(fits, _then(situation, chosen[0], base, history, spec))
        chosen[1:1] = islice(further, 1)
    return _distinct(chosen, history)[:width], left_out


def _ordered(
    situation: Situation,
    base: Outcome,
    pool: Sequence[tuple[float, Option]],
    history: Sequence[Outcome],
    spec: SearchSpec,
) -> list[Candidate]:
    """Return what the spec asks for first, then rescues, the opening, moves, and undoing."""
    ranked = [(each[1], _candidate(each[1], base, each[0], situation)) for each in pool]
    chosen = [candidate for option, candidate in ranked if option.first]
    chosen += _rescues(situation, base, history, spec)
    if _is_opening(history):
        chosen += _opening(situation, base, pool, history, spec)
    chosen += (each for _, each in ranked if each.promise >= _WORTH_A_START)
    return [*chosen, *_undone(base, history, situation)]


def _distinct(candidates: Sequence[Candidate], history: Sequence[Outcome]) -> list[Candidate]:
    """Return each configuration once, under a name that no other one has."""
    taken = {each.name: key_of(each.value) for each in history}
    result: dict[str, Candidate] = {}
    renamed: dict[str, str] = {}
    for each in candidates:
        if (key := key_of(each.value)) not in result:
            name = distinct_name(each.name, key, taken)
            result[key] = replace(each, name=name, base=renamed.get(each.base, each.base))
            taken[name] = key
            renamed |= {each.name: name} if name != each.name else {}
    return list(result.values())


def _moves(
    situation: Situation,
    base: Outcome,
    history: Sequence[Outcome],
    spec: SearchSpec,
    ended: Collection[str],
) -> tuple[list[tuple[float, Option]], list[Option]]:
    """Return what may be changed at ``base`` by promise, and what is left with the reason."""
    known = {key_of(each.value) for each in history}
    pool: list[tuple[float, Option]] = []
    left_out: list[Option] = []
    for option in (*options(situation, base.value, spec), *_instead(situation, base, spec)):
        promise = _promise(option, base, history)
        if option.value is None:
            left_out.append(option)
        elif option.move.family in ended:
            reason = f"other {option.move.family} failed the gate"
            left_out.append(replace(option, value=None, reason=reason))
        elif key_of(option.value) in known:
            continue
        elif promise < _LONG_SHOT and not option.first:
            reason = f"costs {1 / promise:.2f} times as much, as expected here"
            left_out.append(replace(option, value=None, reason=reason))
        else:
            pool.append((promise, option))
    return sorted(pool, key=lambda each: (not each[1].first, -each[0])), left_out


def _long_shots(
    situation: Situation,
    base: Outcome,
    history: Sequence[Outcome],
    spec: SearchSpec,
    ended: Collection[str],
) -> list[Candidate]:
    """Return moves not tried with the same draft, from each configuration close to ``base``.

    They are less likely to pay; one try of each bounds the search.
    """
    result = []
    tried = {(each.move, _draft(each.value)) for each in history}
    for each in history:
        if each.counts and each.usd and base.usd:
            behind = base.usd / each.usd
            for promise, option in _moves(situation, each, history, spec, ended)[0]:
                new = (option.move.name, _draft(_value(option))) not in tried
                if new and promise * behind >= _LONG_SHOT:
                    result.append(_candidate(option, each, promise * behind, situation))
    return sorted(result, key=lambda each: -each.promise)


def _is_opening(history: Sequence[Outcome]) -> bool:
    return not any(each.move for each in history)


def _draft(value: Value) -> str | None:
    own: Value = value.get("speculation", {})
    return None if "draft" not in own else str(own["draft"])


def _value(option: Option) -> Value:
    assert option.value is not None
    return option.value


def _candidate(option: Option, base: Outcome, promise: float, situation: Situation) -> Candidate:
    return Candidate(
        name=name_of(_value(option), situation),
        value=_value(option),
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
    result: list[Candidate] = []
    for both, promise, weights in ordered:
        alone = _candidate(weights, base, promise, situation)
        pair = None if drafts is None else _with(drafts[1].move, alone, base, both, situation, spec)
        if not result:
            result += (alone, pair) if pair else (alone,)
            if weights.move.family != _FOUR_BITS:
                yield from result
                yield from islice(_then(situation, result[-1], base, history, spec), 1)
                return
        elif pair is not None:
            result.append(
                replace(pair, move=weights.move.name, base=result[-1].name, why=alone.why)
            )
    yield from result


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
    """Yield ``first`` with one move more, most promising first: two changes in one wave."""
    single = replace(base, name=first.name, value=first.value)
    family = _BY_NAME[first.move].family
    further = [
        (_promise(option, single, history), option)
        for option in options(situation, first.value, spec)
        if option.value is not None and option.move.family not in (family, _DRAFTS)
    ]
    for promise, option in sorted(further, key=lambda each: -each[0]):
        if promise >= _WORTH_A_START:
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
    if observed := ratios(move, history):
        expected = (1 - _TRUST) * expected + _TRUST * sum(map(math.log, observed)) / len(observed)
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
    result = []
    for each in history:
        base = by_name.get(each.base or "")
        if each.move != move.name or base is None or not (each.failed or base.usd):
            continue
        ratio = base.usd / each.usd if base.usd and each.usd else _FAILS if each.failed else _MISSES
        other = _replaced(move, base.value)
        result.append(ratio * (1.0 if other is None else other.expected(base.in_flight)))
    return result


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
