"""Degenerate text: empty, one mark without end, replacement characters, or a phrase in a loop.

A layer that computes NaN makes all logits equal; the server then repeats one token, often ``!``.
A small model loops by itself, and in other batches or on another start after other prompts. Timed
answers are therefore compared with the baseline's to the same prompts, and answers to one prompt
are one unit: what they share is the prompt's, however often it is sent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from whet.core.format import percent
from whet.core.records.quality_checks import DegenerateTraffic, GateVerdict
from whet.core.redact import starred
from whet.quality.statistics import holm, sign_flip

MIN_PROMPTS: Final = 8
SIGNIFICANCE: Final = 0.005
"""Of all variants of a run together: one compared with itself fails in well below 1% of runs."""
_SUSPICION: Final = 0.05
MIN_EXCESS: Final = 0.01
"""A share of degenerate answers fails from this far above the baseline's share."""
SILENT_SHARE: Final = 0.9
"""A broken model says nothing after nearly every prompt; a weak one after many."""
_ONE_MARK, _LOOP, _LONGEST_UNIT, _TURNS = 8, 48, 160, 4
_TAIL: Final = 32
"""Of a loop's end at least 36 characters stand again one unit before."""
_UNREADABLE_SHARE: Final = 0.2
_EXAMPLES, _CUT = 3, 300


Key = TypeVar("Key")
Value = TypeVar("Value")
Fault = tuple[str, str]
"""What is wrong with a text: its kind, and the same in words."""


def find_fault(text: str) -> Fault | None:
    """What is wrong with ``text``; None for text that looks like an answer.

    A loop is a unit of up to 160 characters that fills the end: at least 4 times, over at least 48
    characters and half of the text.
    """
    bare = text.strip()
    if not bare:
        return ("empty", "empty")
    if len(bare) >= _ONE_MARK and len(set(bare) - {" ", "\n", "\t"}) == 1:
        return ("one mark", f"only {bare[0]!r}, {len(bare)} characters long")
    if bare.count("\ufffd") >= _UNREADABLE_SHARE * len(bare):
        return ("unreadable", "unreadable bytes")
    for size in _turns_back(bare):
        wanted = max(_LOOP, _TURNS * size, -(-len(bare) // 2))
        if wanted <= len(bare) and bare[size - wanted :] == bare[-wanted:-size]:
            while wanted < len(bare) and bare[-wanted - 1] == bare[-wanted - 1 + size]:
                wanted += 1
            unit = bare[-size:].strip() or "white space"
            return ("loop", f"{unit[:40]!r} repeated {wanted // size} times")
    return None


def _turns_back(text: str) -> Iterator[int]:
    """How far before the end its last characters stand again: the sizes that a unit can have."""
    end = text[-_TAIL:]
    at = len(text) - len(end)
    lowest = max(0, at - _LONGEST_UNIT)
    while (before := text.rfind(end, lowest, at + len(end) - 1)) >= 0:
        at = before
        yield len(text) - len(end) - at


def degenerate(text: str) -> str | None:
    """What is wrong with ``text`` in words, or None."""
    fault = find_fault(text)
    return None if fault is None else fault[1]


def says_nothing(text: str) -> bool:
    """Whether ``text`` is empty or one mark without end."""
    return (find_fault(text) or ("",))[0] in ("empty", "one mark")


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedAnswer:
    """The text of an answer under load.

    Answers to one prompt have the same ``prompt``, in any trial and under any mark; two servers'
    answers to the same request have the same ``request``.
    """

    prompt: int
    request: tuple[str, int]
    text: str


@dataclass(frozen=True, slots=True)
class _Side:
    """A variant's answers: by prompt and request whether each is degenerate."""

    prompts: Mapping[int, Mapping[tuple[str, int], bool]]
    silent: int
    faults: Sequence[tuple[str, Fault]]


@dataclass(slots=True)
class _Comparison:
    """Mean shares of degenerate answers over ``prompts``, and the one-sided p of more here."""

    prompts: int
    here: float
    there: float
    p_value: float


def examine_traffic(
    timed: Mapping[str, Iterable[TimedAnswer]], baseline: str, *, ends: Sequence[str] = ()
) -> tuple[DegenerateTraffic, ...]:
    """Search every timed answer up to its first end token (``ends``), by variant.

    *Fail*: nearly all answers are empty or one mark; or the share of degenerate answers, averaged
    over prompts, is above the ``baseline``'s by a point and significantly: p < 0.005 after Holm's
    correction over the variants. *Unknown*: fewer than 8 prompts on either side, or such a share at
    p < 0.05.
    """
    sides = {name: _read(answers, ends) for name, answers in timed.items()}
    plain = sides.get(baseline, _read((), ends))
    compared = {
        name: _compare(side.prompts, plain.prompts)
        for name, side in sides.items()
        if name != baseline
    }
    adjusted = holm([each.p_value for each in compared.values()])
    for each, p_value in zip(compared.values(), adjusted, strict=True):
        each.p_value = p_value
    return tuple(_record(name, side, compared.get(name)) for name, side in sides.items())


def _read(answers: Iterable[TimedAnswer], ends: Sequence[str]) -> _Side:
    prompts: dict[int, dict[tuple[str, int], bool]] = defaultdict(dict)
    faults, silent = [], 0
    for each in answers:
        text = min((each.text.partition(end)[0] for end in ends), key=len, default=each.text)
        fault = find_fault(text)
        prompts[each.prompt][each.request] = fault is not None
        silent += says_nothing(each.text)
        if fault is not None:
            faults.append((text, fault))
    return _Side(prompts, silent, faults)


def _compare(
    here: Mapping[int, Mapping[tuple[str, int], bool]],
    there: Mapping[int, Mapping[tuple[str, int], bool]],
) -> _Comparison:
    """Compare prompt by prompt, and each prompt's answers over the same requests.

    Between equal servers a prompt's difference has either sign with equal probability, however its
    answers depend on each other.
    """
    pairs = [_matched(mine, other, 1) for mine, other in _matched(here, there, MIN_PROMPTS)]
    shares = [tuple(sum(side) / len(rows) for side in zip(*rows, strict=True)) for rows in pairs]
    differences = [mine - other for mine, other in shares]
    return _Comparison(
        prompts=len(pairs),
        here=sum(mine for mine, _ in shares) / max(1, len(pairs)),
        there=sum(other for _, other in shares) / max(1, len(pairs)),
        p_value=sign_flip(differences) / 2 if sum(differences) > 0 else 1.0,
    )


def _matched(
    here: Mapping[Key, Value], there: Mapping[Key, Value], least: int
) -> list[tuple[Value, Value]]:
    """Return the values of common keys; with fewer than ``least`` of these, of all in order.

    Variants at loads of their own were sent other draws of the same prompts.
    """
    pairs = [(value, there[key]) for key, value in here.items() if key in there]
    enough = len(pairs) >= least
    return pairs if enough else list(zip(here.values(), there.values(), strict=False))


def _record(variant: str, side: _Side, compared: _Comparison | None) -> DegenerateTraffic:
    """Return the record; ``compared`` is None for the baseline."""
    answers = sum(map(len, side.prompts.values()))
    reason = f"{len(side.faults)} of {answers} timed answers are degenerate text"
    verdict, reason = _judge(
        side, compared, reason, is_silent=side.silent >= SILENT_SHARE * answers
    )
    if side.faults:
        text, (kind, _) = side.faults[0]
        reason += f"; the first: {degenerate(starred(text)) or kind}"
    shown = dict.fromkeys(text for text, (kind, _) in side.faults if kind != "empty")
    paired = compared if compared is not None and compared.prompts else None
    return DegenerateTraffic(
        variant=variant,
        answers=answers,
        found=tuple(Counter(kind for _, (kind, _) in side.faults).most_common()),
        baseline_share=None if paired is None else paired.there,
        p_value=None if paired is None else paired.p_value,
        examples=tuple(starred(text)[:_CUT] for text in list(shown)[:_EXAMPLES]),
        verdict=verdict,
        reason=reason,
    )


def _judge(
    side: _Side, compared: _Comparison | None, reason: str, *, is_silent: bool
) -> tuple[GateVerdict, str]:
    if is_silent and len(side.prompts) >= MIN_PROMPTS:
        return "fail", f"{reason}; {side.silent} are empty or one mark without end"
    prompts = len(side.prompts) if compared is None else compared.prompts
    if prompts < MIN_PROMPTS:
        few = "prompts" if compared is None else "prompts on both sides"
        return "unknown", f"{reason}, to {prompts} {few}: too few; send at least {MIN_PROMPTS}"
    if compared is None:
        return "pass", reason
    reason += (
        f": {percent(compared.here)} against the baseline's {percent(compared.there)} "
        f"(sign-flip test over {prompts} prompts, p {compared.p_value:.2g} after Holm)"
    )
    if compared.here - compared.there < MIN_EXCESS or compared.p_value >= _SUSPICION:
        return "pass", reason
    if compared.p_value < SIGNIFICANCE:
        return "fail", reason
    return "unknown", f"{reason}, too few prompts to be sure; raise load.min_requests"
