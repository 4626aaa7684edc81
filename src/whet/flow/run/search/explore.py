"""What to try next: from what was measured so far to the servers of the next wave.

Pure functions of the history, so that a search can be resumed and replayed. A search begins with
the best that the playbook knows for weights and for speculation, and goes on from the cheapest
configuration by the moves that promise most: by the playbook before a move was tried, by what it
brought elsewhere after that. What is left of the time undoes the changes one by one, because a
change that was worth it when it was adopted need not be in the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from whet.core.load import Load
from whet.core.names import name_from
from whet.core.records.search import Standing, Worth
from whet.core.spec import DEFAULT, SIXTEEN_BIT, SearchSpec
from whet.flow.run.search.changes import Value
from whet.flow.run.search.playbook import MOVES, Move, Option, options
from whet.flow.run.situation import Situation

ALIKE: Final = 1.02
"""Cost ratio of two single starts that is not taken for a difference: the fewer changes win."""
_WORTH_A_START: Final = 1.005
"""Expected cost before ÷ after, below which a move is not tried."""
_CALLED_FOR: Final = 1.04
"""What a measured limit that a move helps with adds to its promise."""
_TRUST: Final = 0.7
"""How much of what a move brought elsewhere is expected of it here."""
_ACCEPTED: Final = (0.55, 0.8)
"""Shares of accepted drafts below which fewer are drafted, and above which more."""
_OPENING: Final = ("weights", "speculation")
"""Ends of the names of the families that a search opens with."""
UNDO: Final = "undo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One configuration that was tried.

    ``usd`` is the cost of its cheapest cell that meets the limits by its figures, in the unit that
    the decision ranks by; None where none does. ``load`` is that cell's, ``in_flight`` the requests
    in flight there, ``limit`` what limits it, ``accepted`` the share of drafts that were accepted.
    ``failed`` says why it has no figures, ``answers`` what the gate said.
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


def next_wave(
    situation: Situation, history: Sequence[Outcome], spec: SearchSpec, width: int
) -> tuple[list[Candidate], list[Option]]:
    """Return at most ``width`` configurations to try, best promise first, and what is not tried.

    Nothing is returned where no move promises anything and every change was undone once. The
    history begins with where the search began.
    """
    base = incumbent(history) or history[0]
    known = {key_of(each.value) for each in history}
    chosen: list[Candidate] = []
    left_out: list[Option] = []
    ended = set(_ended_families(history))
    pool: list[tuple[float, Option]] = []
    for option in options(situation, base.value, spec):
        promise = _promise(option, base, history)
        if option.value is None:
            left_out.append(option)
        elif option.move.family in ended:
            left_out.append(_not(option, f"{ended_words(option.move.family)} failed the gate"))
        elif key_of(option.value) in known:
            continue
        elif promise < _WORTH_A_START and not option.first:
            left_out.append(
                _not(option, f"costs {1 / promise:.2f} times as much, as expected here")
            )
        else:
            pool.append((promise, option))
    pool.sort(key=lambda each: (not each[1].first, -each[0]))
    opening = not any(each.move for each in history)
    if opening:
        chosen += _opening(situation, base, pool, history, spec)
    chosen += (_candidate(option, base, promise, situation) for promise, option in pool)
    chosen += _undone(base, history, situation)
    unique: dict[str, Candidate] = {}
    for each in chosen:
        if key_of(each.value) not in known:
            unique.setdefault(key_of(each.value), each)
    return list(unique.values())[:width], left_out


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
    """Yield the best weights, and with them the best speculation; what is verified needs both."""
    weights, drafts = (
        next((each for each in pool if each[1].move.family.endswith(end)), None) for end in _OPENING
    )
    if weights is None:
        return
    first = _candidate(weights[1], base, weights[0], situation)
    yield first
    if drafts is None:
        return
    for option in options(situation, first.value, spec):
        if option.move is drafts[1].move and option.value is not None:
            both = Outcome(name=first.name, value=first.value, in_flight=base.in_flight)
            yield _candidate(option, both, drafts[0], situation)
            return


def _promise(option: Option, base: Outcome, history: Sequence[Outcome]) -> float:
    """Expected cost before ÷ after of a move from ``base``."""
    expected = math.log(option.move.expected(base.in_flight))
    seen = ratios(option.move, history)
    if seen:
        expected = (1 - _TRUST) * expected + _TRUST * sum(map(math.log, seen)) / len(seen)
    if base.limit in option.move.helps:
        expected += math.log(_CALLED_FOR)
    few, many = _ACCEPTED
    if base.accepted is not None and option.move.name in ("k-up", "k-down"):
        up = option.move.name == "k-up"
        calls = (base.accepted > many) - (base.accepted < few)
        expected += math.log(_CALLED_FOR) * (calls if up else -calls)
    return math.exp(expected)


def ratios(move: Move, history: Sequence[Outcome]) -> list[float]:
    """Return base's cost ÷ own wherever a move was measured on both sides."""
    by_name = {each.name: each for each in history}
    found = []
    for each in history:
        base = by_name.get(each.base or "")
        if each.move == move.name and base is not None and base.usd and each.usd:
            found.append(base.usd / each.usd)
        elif each.move == move.name and base is not None and (each.failed or base.usd):
            found.append(0.5)  # it does not run, or misses the limits that its base meets
    return found


def _ended_families(history: Sequence[Outcome]) -> Iterator[str]:
    families = {move.name: move.family for move in MOVES}
    for each in history:
        if each.answers == "fail" and each.move in families:
            yield families[each.move]


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


def neighbours(value: Value, root: Value) -> Iterator[tuple[str, Value]]:
    """Yield each change of ``value`` against ``root`` in words, and the value without it."""
    flat, plain = _flat(value), _flat(root)
    for key in changes(value, root):
        without = {name: item for name, item in flat.items() if name != key}
        without |= {key: plain[key]} if key in plain else {}
        if key == "weights":  # kernels are of the weights
            without.pop("kernels", None)
        yield _words(key, flat.get(key)), _nested(without)


def changes(value: Value, root: Value) -> list[str]:
    """Return the keys in which two configurations differ, weights and drafts first."""
    flat, plain = _flat(value), _flat(root)
    keys = [key for key in {**flat, **plain} if flat.get(key) != plain.get(key)]
    if "weights" in keys and "kernels" in keys:
        keys.remove("kernels")
    order = {"weights": 0, "speculation": 1}
    return sorted(keys, key=lambda key: (order.get(key, 2), key))


def key_of(value: Value) -> str:
    """Return a text that is the same for two configurations if they are."""
    return repr(sorted((name, repr(item)) for name, item in _flat(value).items()))


def _flat(value: Value) -> dict[str, Any]:
    """Flags as keys of their own; a default that is written out is left out."""
    flat = {name: item for name, item in value.items() if name != "args"}
    flat |= {f"args.{name}": item for name, item in value.get("args", {}).items()}
    if flat.get("weights") == SIXTEEN_BIT:
        del flat["weights"]
    return flat


def _nested(flat: Mapping[str, Any]) -> Value:
    value = {name: item for name, item in flat.items() if not name.startswith("args.")}
    args = {name[5:]: item for name, item in flat.items() if name.startswith("args.")}
    return {**value, "args": args} if args else value


def _words(key: str, item: object) -> str:
    if key == "speculation" and isinstance(item, Mapping):
        return f"{item['method']} K={item['num_tokens']}"
    return f"{key.removeprefix('args.')}={item}" if item is not None else f"no {key}"


def name_of(value: Value, situation: Situation) -> str:
    """Return a short name: ``fp8+eagle3.k4+rust``."""
    parts: list[str] = []
    for key, item in _flat(value).items():
        if key == "weights":
            parts.insert(0, name_from(str(item).rsplit("/", 1)[-1].lower(), "weights"))
        elif key == "speculation":
            parts.append(_drafts_name(item, situation))
        elif key in ("kernels", "frontend", "performance_mode"):
            parts.append(str(item))
        elif key.startswith("args."):
            short = "".join(word[0] for word in key[5:].split("_"))
            parts.append(f"{short}{item}".lower())
    return "+".join(parts) or DEFAULT


def _drafts_name(own: Mapping[str, Any], situation: Situation) -> str:
    name, ref = own["method"], str(own.get("draft", ""))
    alike = [head for head in situation.heads if head.method == name and not head.problem]
    if alike[1:] and ref:
        name = name_from(ref.rsplit("/", 1)[-1].lower(), name)
    name = f"{name}.k{own['num_tokens']}"
    if own.get("num_tokens_by_load"):
        name += "-by-load"
    if method := own.get("rejection_sample_method"):
        name += f"-{method}"
    return name
