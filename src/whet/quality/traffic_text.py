"""Degenerate text among all timed answers of a variant, held against the baseline's.

Timed traffic is asked for a fixed number of tokens (``ignore_eos``). Past its end token every model
says what it was never trained to say, and often says it in a loop: only what stands before the
first end token is an answer. An end token that is not known leaves such loops in, in the
baseline's text as in the variant's, so that a share is judged beside the baseline's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.records import DegenerateTraffic, RequestEvent
from whet.core.redact import starred
from whet.quality.degenerate import KINDS, Degenerate, find_degenerate
from whet.quality.language import Language, read_language

MIN_ANSWERS: Final = 8
"""Fewer answers than this, on either side, leave the verdict unknown."""
SIGNIFICANCE: Final = 0.01
MIN_EXCESS: Final = 0.01
"""A share that is less than this above the baseline's is none to fail for, however certain."""

_STUCK: Final = ("empty", "one mark")
_STUCK_SHARE: Final = 0.5
_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineTraffic:
    """What others are judged by: how many ``answers`` there were, how many ``degenerate``.

    ``language`` None leaves the language of a variant unjudged (an adapter may have changed it).
    """

    answers: int
    degenerate: int
    language: Language | None


def read_baseline(
    requests: Iterable[RequestEvent], *, ends: Sequence[str] = (), prompts: Iterable[str] = ()
) -> BaselineTraffic:
    """The baseline's side of ``examine_traffic``, read once for all variants.

    ``ends`` are the texts of the tokens that end an answer. ``prompts`` are what was asked: a
    script that they use is none to wonder at in an answer.
    """
    texts = [_answer(request.text, ends) for request in requests if request.error is None]
    language = read_language(texts, prompts) if len(texts) >= MIN_ANSWERS else None
    found = [find_degenerate(text, language, own=True) for text in texts]
    return BaselineTraffic(
        answers=len(texts),
        degenerate=sum(item is not None for item in found),
        language=language,
    )


def examine_traffic(
    variant: str,
    requests: Iterable[RequestEvent],
    baseline: BaselineTraffic | None,
    *,
    ends: Sequence[str] = (),
) -> DegenerateTraffic:
    """Look at every timed answer of ``variant``; failed requests are none.

    ``baseline`` None says that the variant is the baseline. *Fail* is a share of degenerate answers
    significantly above the baseline's (Fisher's exact test, one-sided, p < 0.01) by 1 percentage
    point or more; or most answers empty or one mark to the end, whatever the baseline's are.
    *Unknown* is fewer than 8 answers on either side.
    """
    expected = None if baseline is None else baseline.language
    faults: list[tuple[str, Degenerate]] = []
    answers = stuck = 0
    for request in requests:
        if request.error is not None:
            continue
        answers += 1
        text = _answer(request.text, ends)
        found = find_degenerate(text, expected)
        if found is not None:
            faults.append((text, found))
            whole = found if text == request.text else find_degenerate(request.text)
            stuck += whole is not None and whole.kind in _STUCK
    known = baseline is not None and baseline.answers > 0 and answers > 0
    p_value = _more(len(faults), answers, baseline) if baseline is not None and known else None
    seen = _Seen(answers=answers, faults=len(faults), stuck=stuck, p_value=p_value)
    verdict, reason = _judge(seen, baseline)
    counts = Counter(found.kind for _, found in faults)
    return DegenerateTraffic(
        variant=variant,
        answers=answers,
        found=tuple((kind, counts[kind]) for kind in KINDS if counts[kind]),
        baseline_share=baseline.degenerate / baseline.answers if baseline and known else None,
        p_value=p_value,
        examples=_examples(faults),
        verdict=verdict,
        reason=reason if not faults else f"{reason}; the first: {_told(*faults[0])}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """A variant's counts: ``faults`` of its ``answers`` are degenerate, ``stuck`` say nothing."""

    answers: int
    faults: int
    stuck: int
    p_value: float | None


def _judge(seen: _Seen, baseline: BaselineTraffic | None) -> tuple[str, str]:
    """pass, fail or unknown, and why in one sentence."""
    said = f"{seen.faults} of {seen.answers} timed answers are degenerate text"
    if seen.answers < MIN_ANSWERS:
        return "unknown", (
            f"{seen.answers} timed answers are too few to judge; time at least {MIN_ANSWERS}"
        )
    if seen.stuck > _STUCK_SHARE * seen.answers:
        return "fail", (
            f"{seen.stuck} of {seen.answers} timed answers are empty or one mark without end"
        )
    if baseline is None:
        return "pass", said
    if baseline.answers < MIN_ANSWERS or seen.p_value is None:
        return "unknown", (
            f"{said}, and the baseline's {baseline.answers} are too few to compare them with"
        )
    said += (
        f", against {baseline.degenerate} of {baseline.answers} of the baseline's "
        f"(Fisher's exact p {seen.p_value:.2g})"
    )
    excess = seen.faults / seen.answers - baseline.degenerate / baseline.answers
    return "fail" if seen.p_value < SIGNIFICANCE and excess >= MIN_EXCESS else "pass", said


def _more(faults: int, answers: int, baseline: BaselineTraffic) -> float:
    """Fisher's exact test, one-sided: p of so many faults or more at one common rate."""
    from scipy.stats import fisher_exact

    table = [
        [faults, answers - faults],
        [baseline.degenerate, baseline.answers - baseline.degenerate],
    ]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _answer(text: str, ends: Sequence[str]) -> str:
    """``text`` up to the first end token."""
    for end in ends:
        text = text.partition(end)[0]
    return text


def _examples(faults: Sequence[tuple[str, Degenerate]]) -> tuple[str, ...]:
    """One answer of each kind first, then others; an empty one shows nothing and is left out."""
    firsts: dict[str, str] = {}
    for text, found in faults:
        if found.kind != "empty":
            firsts.setdefault(found.kind, text)
    shown = dict.fromkeys([*firsts.values(), *(text for text, _ in faults if text.strip())])
    return tuple(_cut(text) for text in list(shown)[: max(_EXAMPLES, len(firsts))])


def _told(text: str, found: Degenerate) -> str:
    """What is wrong with a text, in words without a secret or a piece of one."""
    if found.kind != "loop":
        return found.words
    starred_too = find_degenerate(starred(text))
    return found.kind if starred_too is None else starred_too.words


def _cut(text: str) -> str:
    # The whole is starred and cut then: a piece of a secret has no form.
    safe = starred(text)
    return safe if len(safe) <= _EXAMPLE_CHARACTERS else f"{safe[:_EXAMPLE_CHARACTERS]}…"
