"""Whether speculation changes no answer, and whether it speculates at all.

Speculative decoding keeps the target's distribution exactly (Leviathan et al. 2023, appendix A),
up to the rounding of other batch shapes. Three questions are put to the server:

- Greedy continuations: as equal to the plain server's as the plain server's own repeat, or else
  different only where two tokens are all but tied.
- Sampled continuations: of one distribution with the plain server's.
- Drafts: are any accepted? A draft of another tokenizer, or trained on other text, keeps the
  output right, because every wrong token is rejected; it only costs speed. No comparison of
  answers can find it, so the engine's own counters are read.

The first two look for a defect, and absence of one in a few prompts is no proof; a loss in tasks
is the gate's question (``verdicts.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from whet.client import scrape
from whet.core.counters import ACCEPTED, DRAFT_TOKENS
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.protocols import Progress
from whet.core.records import Counters, GateVerdict, GreedyParity, LosslessCheck, TwoSample
from whet.quality.asking import ModelEndpoint, part_of
from whet.quality.greedy import Continuations, continue_greedily, greedy_parity, prompts_identity
from whet.quality.paired import SIGNIFICANCE, wilson
from whet.quality.prompts import Ids
from whet.quality.two_sample import Samples, Sampling, compare_samples, sample_many

MIN_PROMPTS: Final = 8
TIE_NATS: Final = 1.0
"""A lead that rounding does not overturn: 16 bits shift a logit by tenths of a nat."""
SAMPLING_SIGNIFICANCE: Final = 0.01
CONFIRMED: Final = 0.05
"""The p-value of a second draw, after a first one below ``SAMPLING_SIGNIFICANCE``. A run has a test
for every speculative variant: ten of them alone would exclude a sound one in a tenth of all runs.
"""
NEVER_ACCEPTED: Final = 0.02
_BATCH_STEP: Final = 4
_ORDER: Final[tuple[GateVerdict, ...]] = ("fail", "unknown", "pass")

Finding = tuple[GateVerdict, str]
"""pass, fail or unknown, and why in a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LosslessPlan:
    """How much is asked: greedy ``tokens`` a prompt, and what is sampled; None for greedy alone."""

    tokens: int = 64
    sampling: Sampling | None = field(default_factory=Sampling)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainReference:
    """The plain server's answers, kept so that any variant can be held to them later.

    ``again`` are the same greedy continuations in other batches and the opposite order: what
    batching alone changes.
    """

    plan: LosslessPlan
    first: Continuations
    again: Continuations
    samples: Samples | None


def plain_reference(
    endpoint: ModelEndpoint,
    prompts: Sequence[Ids],
    plan: LosslessPlan | None = None,
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> PlainReference:
    """Ask the server without speculation: greedy twice, sampled once.

    The repeat runs at a quarter of the concurrency (at four times, where that is below 1).
    """
    plan = plan or LosslessPlan()
    asked = len(prompts)
    slow = endpoint.concurrency // _BATCH_STEP or endpoint.concurrency * _BATCH_STEP
    first = continue_greedily(
        endpoint, prompts, plan.tokens, names=names, progress=part_of(progress, 0, 3 * asked)
    )
    again = continue_greedily(
        replace(endpoint, concurrency=slow),
        prompts,
        plan.tokens,
        names=names,
        backwards=True,
        progress=part_of(progress, asked, 3 * asked),
    )
    samples = (
        None
        if plan.sampling is None
        else sample_many(
            endpoint,
            prompts,
            plan.sampling,
            names=names,
            progress=part_of(progress, 2 * asked, 3 * asked),
        )
    )
    return PlainReference(plan=plan, first=first, again=again, samples=samples)


def check_lossless(
    endpoint: ModelEndpoint,
    plain: PlainReference,
    prompts: Sequence[Ids],
    *,
    names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> LosslessCheck:
    """Ask the speculative server what ``plain`` was asked, and judge.

    - *fail*: greedy parity significantly below the plain server's own (one-sided McNemar p < 0.05)
      and a difference where the plain server's lead exceeds 1 nat and every lead that its own
      repeat overturned; or the sampling test's p < 0.01 and again < 0.05 on a second draw, made
      only then; or an acceptance whose upper 95 % bound (Wilson) is below 2 %.
    - *unknown*: fewer than 8 prompts; anything that was not answered or not counted; such a
      difference, or such an acceptance, in too few prompts to be significant.
    - *pass*: else. A parity that is lower by ties alone passes: rounding did that.

    Nothing raises for what the server does not answer.
    """
    if prompts_identity(prompts) != plain.first.prompts_sha256:
        reason = "the plain server was asked other prompts; ask it again with these"
        return _check(None, None, (None, None), [("unknown", reason)])
    before = _counters(endpoint)
    asked = len(prompts)
    greedy = continue_greedily(
        endpoint, prompts, plain.plan.tokens, names=names, progress=part_of(progress, 0, 2 * asked)
    )
    draws = _draws(endpoint, plain.samples, prompts, names, part_of(progress, asked, 2 * asked))
    sampling, on_sampling = _sampling(draws, plain.samples)
    counted = _rises(before, _counters(endpoint))
    parity, on_parity = _parity(greedy, plain)
    return _check(
        parity, sampling, counted, [*on_parity, *on_sampling, _judge_acceptance(*counted)]
    )


def _draws(
    endpoint: ModelEndpoint,
    plain: Samples | None,
    prompts: Sequence[Ids],
    names: Sequence[str] | None,
    progress: Progress | None,
) -> Iterator[Samples]:
    """Draw after draw of what the plain server was sampled for; each is asked when it is taken."""
    if plain is None:
        return
    for number in count(1):
        yield sample_many(
            endpoint,
            prompts,
            _fresh(plain, number),
            names=names,
            backwards=True,
            progress=progress,
        )


def _fresh(plain: Samples, number: int) -> Sampling:
    """The same draw with seeds beyond those of the plain side, and of earlier numbers."""
    sampling = plain.sampling
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=sampling.seed + number * plain.asked * sampling.samples)


def _check(
    parity: GreedyParity | None,
    sampling: TwoSample | None,
    counted: tuple[int | None, int | None],
    findings: Sequence[Finding],
) -> LosslessCheck:
    """The worst of the findings is the verdict; all that are no pass are its reasons, worst first,
    and of a pass all."""
    accepted, drafted = counted
    ordered = sorted(findings, key=lambda finding: _ORDER.index(finding[0]))
    if ordered[0][0] != "pass":
        ordered = [finding for finding in ordered if finding[0] != "pass"]
    return LosslessCheck(
        parity=parity,
        sampling=sampling,
        acceptance_rate=accepted / drafted if accepted is not None and drafted else None,
        drafted=drafted,
        verdict=ordered[0][0],
        reasons=tuple(reason for _, reason in ordered),
    )


def _parity(
    greedy: Continuations, plain: PlainReference
) -> tuple[GreedyParity | None, list[Finding]]:
    gaps = _gaps(here=greedy, plain=plain.first, repeat=plain.again)
    try:
        parity = greedy_parity(greedy, plain.first, plain.again)
        itself = greedy_parity(plain.again, plain.first)
    except ValueError as error:
        return None, gaps or [("unknown", f"greedy parity cannot be formed: {error}")]
    shown = [one.margin for one in itself.divergences if one.margin is not None]
    return parity, [*gaps, judge_parity(parity, limit=max([TIE_NATS, *shown]))]


def judge_parity(parity: GreedyParity, *, limit: float) -> Finding:
    """The verdict on greedy parity; a lead of more than ``limit`` nats is no tie."""
    said = (
        f"{parity.same} of {parity.prompts} greedy continuations are the plain server's to the "
        f"end (its own repeat: {parity.aa_same})"
    )
    if parity.prompts < MIN_PROMPTS:
        return "unknown", f"{said}; {parity.prompts} prompts are too few: give {MIN_PROMPTS}"
    apart = [one for one in parity.divergences if one.at is not None]
    known = [one.margin for one in apart if one.margin is not None]
    beyond = [margin for margin in known if margin > limit]
    significant = parity.p_value is not None and parity.p_value < SIGNIFICANCE
    p = "" if parity.p_value is None else f", McNemar's exact p {parity.p_value:.2g}"
    if beyond:
        far = (
            f"{said}{p}; {len(beyond)} leave it where its own token leads by more than "
            f"{limit:.2g} nats (the most: {max(beyond):.2g}), which rounding does not overturn"
        )
        return ("fail", far) if significant else ("unknown", f"{far}; give more prompts")
    if len(known) < len(apart) and significant:
        return "unknown", f"{said}{p}; without log-probabilities ties cannot be told from defects"
    if known:
        most = max(known)
        return (
            "pass",
            f"{said}{p}; no difference where its token leads by more than {most:.2g} nats",
        )
    return "pass", f"{said}{p}"


def _sampling(
    draws: Iterator[Samples], plain: Samples | None
) -> tuple[TwoSample | None, list[Finding]]:
    """The test on the first draw; a failure counts once a second draw confirms it."""
    if plain is None:
        return None, [
            ("pass", "sampled text was not compared: the plan asks for greedy text alone")
        ]
    found, findings = _compared(next(draws), plain)
    if found is None or findings[-1][0] != "fail":
        return found, findings
    again, more = _compared(next(draws), plain)
    if again is None:
        return found, [*findings, *more]
    verdict = judge_again(found, again)
    return found if verdict[0] == "fail" else again, [*findings[:-1], *more[:-1], verdict]


def _compared(here: Samples, plain: Samples) -> tuple[TwoSample | None, list[Finding]]:
    gaps = _gaps(here=here, plain=plain)
    try:
        found = compare_samples(here, plain)
    except ValueError as error:
        return None, gaps or [("unknown", f"sampled text cannot be compared: {error}")]
    return found, [*gaps, judge_sampling(found)]


def judge_sampling(found: TwoSample) -> Finding:
    """The verdict on the two-sample test."""
    said = _drawn(found)
    if found.prompts < MIN_PROMPTS:
        return "unknown", f"{said}; {found.prompts} prompts are too few: give {MIN_PROMPTS}"
    if found.p_value < SAMPLING_SIGNIFICANCE:
        return "fail", f"{said}; sampled text is of another distribution than the plain server's"
    return "pass", said


def judge_again(found: TwoSample, again: TwoSample) -> Finding:
    """The verdict on a failure, ``found``, after a draw of its own, ``again``."""
    said = f"{_drawn(found)}, and {again.p_value:.2g} on samples drawn again"
    if again.p_value < CONFIRMED:
        return "fail", f"{said}; sampled text is of another distribution than the plain server's"
    return "pass", f"{said}, so the first was chance"


def _drawn(found: TwoSample) -> str:
    return (
        f"{found.samples} samples of each of {found.prompts} prompts at temperature "
        f"{found.temperature:g}: MMD² {found.statistic:.2g}, permutation p {found.p_value:.2g}"
    )


def _judge_acceptance(accepted: int | None, drafted: int | None) -> Finding:
    if accepted is None or drafted is None:
        return "unknown", (
            "the server exports no counters of drafted and accepted tokens, so that nothing shows "
            "whether it speculates"
        )
    if drafted == 0:
        return "unknown", "nothing was drafted while the check asked: speculation was not tested"
    share = wilson(min(accepted, drafted), drafted)
    said = f"{accepted:,} of {drafted:,} drafted tokens were accepted ({share.value:.1%})"
    if share.high is not None and share.high < NEVER_ACCEPTED:
        return "fail", (
            f"{said}: the draft proposes what the target never says; its tokenizer or its training "
            "is another's, and speculation only costs time"
        )
    if share.value < NEVER_ACCEPTED:
        return "unknown", f"{said}, too few drafts to tell that from none; give more prompts"
    return "pass", said


def _gaps(**sides: Continuations | Samples) -> list[Finding]:
    """A finding for each side that was not answered in full."""
    words = {"here": "", "plain": "on the plain server, ", "repeat": "on the plain server again, "}
    return [
        ("unknown", words[name] + side.missing)
        for name, side in sides.items()
        if side.missing is not None
    ]


def _counters(endpoint: ModelEndpoint) -> Counters | None:
    """The engine's counters now; None where there are none to be read."""
    try:
        return scrape(endpoint.url)
    except (EngineLostError, MeasurementError):
        return None


def _rises(before: Counters | None, after: Counters | None) -> tuple[int | None, int | None]:
    """(accepted, drafted) tokens between two readings; None for a counter missing or fallen."""
    return _rise(before, after, ACCEPTED), _rise(before, after, DRAFT_TOKENS)


def _rise(before: Counters | None, after: Counters | None, name: str) -> int | None:
    if before is None or after is None:
        return None
    start, end = before.get(name) or 0.0, after.get(name)
    return None if end is None or end < start else round(end - start)
