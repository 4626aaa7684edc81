"""Degenerate text: empty, one mark without end, replacement characters, or a phrase in a loop.

A layer that computes NaN makes all logits equal; the server then repeats one token, often ``!``.
Timed answers are judged beside the baseline's: past its end token a forced answer often loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from whet.core.records import DegenerateTraffic, GateVerdict, RequestEvent
from whet.core.redact import starred

MIN_ANSWERS: Final = 8
SIGNIFICANCE: Final = 0.01
MIN_EXCESS: Final = 0.01
"""A share of degenerate answers fails from this far above the baseline's share."""
_ONE_MARK, _LOOP, _LONGEST_UNIT, _TURNS = 8, 48, 160, 4
_TAIL: Final = 32
"""Of a loop's end at least 36 characters stand again one unit before."""
_UNREADABLE_SHARE: Final = 0.2
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


def examine_traffic(
    variant: str,
    requests: Iterable[RequestEvent],
    baseline: DegenerateTraffic | None,
    *,
    ends: Sequence[str] = (),
) -> DegenerateTraffic:
    """Search every timed answer up to its first end token (``ends``); failed requests are left out.

    ``baseline`` is the baseline's own record, None for the baseline. *Fail*: most answers are empty
    or one mark; or the share is above the baseline's by a point and significantly (Fisher's exact
    test, one-sided, p < 0.01). *Unknown*: fewer than 8 answers on either side.
    """
    whole = [request.text for request in requests if request.error is None]
    answers = [
        min((text.partition(end)[0] for end in ends), key=len, default=text) for text in whole
    ]
    faults = [(text, fault) for text in answers if (fault := find_fault(text)) is not None]
    silent = sum((find_fault(text) or ("",))[0] in ("empty", "one mark") for text in whole)
    shown = dict.fromkeys(starred(text) for text, (kind, _) in faults if kind != "empty")
    there = None if baseline is None else (baseline.answers, sum(n for _, n in baseline.found))
    verdict, reason, p_value = _judge(len(answers), len(faults), silent, there)
    if faults:
        reason += f"; the first: {degenerate(starred(faults[0][0])) or faults[0][1][0]}"
    return DegenerateTraffic(
        variant=variant,
        answers=len(answers),
        found=tuple(Counter(kind for _, (kind, _) in faults).most_common()),
        baseline_share=there[1] / there[0] if there and there[0] and answers else None,
        p_value=p_value,
        examples=tuple(text[:_CUT] for text in list(shown)[:_EXAMPLES]),
        verdict=verdict,
        reason=reason,
    )


def _judge(
    answers: int, faults: int, silent: int, baseline: tuple[int, int] | None
) -> tuple[GateVerdict, str, float | None]:
    """Return verdict, reason and p; ``baseline`` holds its answers and the degenerate ones."""
    from scipy.stats import fisher_exact

    compared, baseline_faults = baseline or (0, 0)
    p_value = None
    if compared and answers:
        table = [[faults, answers - faults], [baseline_faults, compared - baseline_faults]]
        p_value = float(fisher_exact(table, alternative="greater").pvalue)
    reason = f"{faults} of {answers} timed answers are degenerate text"
    if answers < MIN_ANSWERS:
        few = f"{answers} timed answers are too few to judge; time at least {MIN_ANSWERS}"
        return "unknown", few, p_value
    if 2 * silent > answers:
        reason = f"{silent} of {answers} timed answers are empty or one mark without end"
        return "fail", reason, p_value
    if baseline is None:
        return "pass", reason, None
    if compared < MIN_ANSWERS or p_value is None:
        reason += f", and the baseline's {compared} are too few to compare them with"
        return "unknown", reason, p_value
    reason += (
        f", against {baseline_faults} of {compared} of the baseline's "
        f"(Fisher's exact p {p_value:.2g})"
    )
    more = p_value < SIGNIFICANCE and faults / answers - baseline_faults / compared >= MIN_EXCESS
    return "fail" if more else "pass", reason, p_value
