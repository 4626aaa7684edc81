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
from typing import Final

from whet.core.format import percent
from whet.core.records import DegenerateTraffic, GateVerdict
from whet.core.redact import starred
from whet.quality.paired import holm, sign_flip

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
_MOST: Final = 0.5
_EXAMPLES, _CUT = 3, 300


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
class _Answers:
    """A variant's answers: whether each is degenerate, and silent, by prompt and request."""

    degenerate: Mapping[int, Mapping[tuple[str, int], bool]]
    silent: Mapping[int, Sequence[bool]]
    faults: Sequence[tuple[str, Fault]]

    @property
    def count(self) -> int:
        return sum(map(len, self.silent.values()))

    @property
    def silent_share(self) -> float:
        """The mean over prompts of the share of their answers that say nothing."""
        return _mean([_mean(each) for each in self.silent.values()])


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Mean shares of degenerate answers over prompts, and the one-sided p of more than before."""

    here: float
    there: float
    p_value: float
    test: str

    @property
    def is_more(self) -> bool:
        return self.here - self.there >= MIN_EXCESS


def examine_traffic(
    timed: Mapping[str, Iterable[TimedAnswer]], baseline: str, *, ends: Sequence[str] = ()
) -> tuple[DegenerateTraffic, ...]:
    """Search every timed answer up to its first end token (``ends``), by variant.

    *Fail*: after nearly every prompt nothing is said (empty or one mark); or the share of
    degenerate answers, averaged over prompts, is above the ``baseline``'s by a point and
    significantly: p < 0.005 after Holm's correction over the variants. *Unknown*: fewer than 8
    prompts on either side, or such a share at p < 0.05.
    """
    sides = {name: _read(answers, ends) for name, answers in timed.items()}
    plain = sides.get(baseline)
    compared = {
        name: comparison
        for name, side in sides.items()
        if name != baseline and plain is not None and (comparison := _compare(side, plain))
    }
    adjusted = holm([comparison.p_value for comparison in compared.values()])
    p_values = dict(zip(compared, adjusted, strict=True))
    return tuple(
        _record(name, side, compared.get(name), p_values.get(name), is_baseline=name == baseline)
        for name, side in sides.items()
    )


def _read(answers: Iterable[TimedAnswer], ends: Sequence[str]) -> _Answers:
    bad: dict[int, dict[tuple[str, int], bool]] = defaultdict(dict)
    silent: dict[int, list[bool]] = defaultdict(list)
    faults = []
    for each in answers:
        text = min((each.text.partition(end)[0] for end in ends), key=len, default=each.text)
        fault = find_fault(text)
        bad[each.prompt][each.request] = fault is not None
        silent[each.prompt].append(says_nothing(each.text))
        if fault is not None:
            faults.append((text, fault))
    return _Answers(bad, silent, faults)


def _compare(here: _Answers, there: _Answers) -> _Comparison | None:
    """Compare prompt by prompt; None if either side has too few prompts.

    Under the null a prompt's difference has either sign with equal probability, however its answers
    depend on each other. Variants that were sent too few common prompts, at loads of their own, are
    compared as two samples of prompts.
    """
    if min(len(here.degenerate), len(there.degenerate)) < MIN_PROMPTS:
        return None
    shares = [
        _paired_shares(answers, there.degenerate[prompt])
        for prompt, answers in here.degenerate.items()
        if prompt in there.degenerate
    ]
    if len(shares) < MIN_PROMPTS:
        return _compare_samples(here, there)
    differences = [mine - other for mine, other in shares]
    return _Comparison(
        here=_mean([mine for mine, _ in shares]),
        there=_mean([other for _, other in shares]),
        p_value=sign_flip(differences) / 2 if sum(differences) > 0 else 1.0,
        test=f"sign-flip test over {len(shares)} prompts",
    )


def _paired_shares(
    here: Mapping[tuple[str, int], bool], there: Mapping[tuple[str, int], bool]
) -> tuple[float, float]:
    """Return both shares of one prompt over the same requests, else over as many."""
    both = [(bad, there[request]) for request, bad in here.items() if request in there]
    rows = both or list(zip(here.values(), there.values(), strict=False))
    return _mean([mine for mine, _ in rows]), _mean([other for _, other in rows])


def _compare_samples(here: _Answers, there: _Answers) -> _Comparison:
    """Compare two samples of prompts, each counted once by most of its answers."""
    from scipy.stats import fisher_exact

    sides = [
        [_mean(list(each.values())) >= _MOST for each in side.degenerate.values()]
        for side in (here, there)
    ]
    table = [[sum(side), len(side) - sum(side)] for side in sides]
    return _Comparison(
        here=_mean(sides[0]),
        there=_mean(sides[1]),
        p_value=float(fisher_exact(table, alternative="greater").pvalue),
        test=f"Fisher's exact test of {len(sides[0])} and {len(sides[1])} prompts",
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _record(
    variant: str,
    side: _Answers,
    compared: _Comparison | None,
    p_value: float | None,
    *,
    is_baseline: bool,
) -> DegenerateTraffic:
    verdict, reason = _judge(side, compared, p_value, is_baseline=is_baseline)
    if side.faults:
        text, (kind, _) = side.faults[0]
        reason += f"; the first: {degenerate(starred(text)) or kind}"
    shown = dict.fromkeys(text for text, (kind, _) in side.faults if kind != "empty")
    return DegenerateTraffic(
        variant=variant,
        answers=side.count,
        found=tuple(Counter(kind for _, (kind, _) in side.faults).most_common()),
        baseline_share=None if compared is None else compared.there,
        p_value=p_value,
        examples=tuple(starred(text)[:_CUT] for text in list(shown)[:_EXAMPLES]),
        verdict=verdict,
        reason=reason,
    )


def _judge(
    side: _Answers, compared: _Comparison | None, p_value: float | None, *, is_baseline: bool
) -> tuple[GateVerdict, str]:
    reason = f"{len(side.faults)} of {side.count} timed answers are degenerate text"
    if len(side.silent) < MIN_PROMPTS:
        return "unknown", (
            f"timed answers to {len(side.silent)} prompts are too few to judge; send at least "
            f"{MIN_PROMPTS} prompts"
        )
    if side.silent_share >= SILENT_SHARE:
        share = percent(side.silent_share)
        return "fail", f"{reason}: {share} of all are empty or one mark without end"
    if compared is None or p_value is None:
        few = f"{reason}, and the baseline's are too few to compare them with"
        return ("pass", reason) if is_baseline else ("unknown", few)
    reason += (
        f": {percent(compared.here)} against the baseline's {percent(compared.there)} "
        f"({compared.test}, p {p_value:.2g} after Holm)"
    )
    if not compared.is_more or p_value >= _SUSPICION:
        return "pass", reason
    if p_value < SIGNIFICANCE:
        return "fail", reason
    return "unknown", f"{reason}, too few prompts to be sure; raise load.min_requests"
