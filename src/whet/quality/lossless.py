"""Check that speculation changes no answer, and that drafts are accepted at all.

Speculative decoding keeps the target's distribution exactly (Leviathan et al. 2023, appendix A),
up to the rounding of other batch shapes. The server is checked in three ways:

- Greedy continuations equal the plain server's as often as the plain server's own repeat does, or
  differ only where two tokens are nearly tied.
- Sampled continuations come from the plain server's distribution.
- Drafts are accepted. A draft with another tokenizer or other training leaves the output right,
  because every wrong token is rejected; only the engine's counters show that it costs time.

The first two search for a defect; finding none in a few prompts proves nothing. A loss in tasks is
judged by the gate (``verdicts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from whet.client import scrape
from whet.core.counters import ACCEPTED, DRAFT_TOKENS
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.records.load import Counters
from whet.core.records.quality_checks import GateVerdict, GreedyParity, LosslessCheck, TwoSample
from whet.quality.asking import ModelEndpoint
from whet.quality.continuations import (
    Continuations,
    Prompts,
    Samples,
    Sampling,
    compare_samples,
    continue_greedily,
    greedy_parity,
    prompts_identity,
    sample_many,
)
from whet.quality.statistics import SIGNIFICANCE, wilson

MIN_PROMPTS: Final = 8
TIE_NATS: Final = 1.0
"""A lead that rounding does not overturn: 16-bit rounding shifts a logit by tenths of a nat."""
SAMPLING_SIGNIFICANCE: Final = 0.01
CONFIRMED: Final = 0.05
"""The p-value of a second draw, after a first one below ``SAMPLING_SIGNIFICANCE``. Without it a run
with ten speculating variants excludes a sound one in a tenth of all runs.
"""
NEVER_ACCEPTED: Final = 0.02
_BATCH_STEP: Final = 4
_ORDER: Final[tuple[GateVerdict, ...]] = ("fail", "unknown", "pass")
_PLAIN, _AGAIN = "on the plain server, ", "on the plain server again, "
_OTHER_DISTRIBUTION: Final = "sampled text has another distribution than the plain server's"

Finding = tuple[GateVerdict, str]
"""A verdict and its reason in a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainReference:
    """The plain server's answers, to compare any speculating variant with later.

    ``again`` are the same greedy continuations in other batches and the opposite order: what
    batching alone changes. Without ``samples`` greedy text alone is compared.
    """

    first: Continuations
    again: Continuations
    samples: Samples | None


def plain_reference(
    endpoint: ModelEndpoint, prompts: Prompts, tokens: int, sampling: Sampling | None
) -> PlainReference:
    """Ask the server without speculation: ``tokens`` greedy ones twice, sampled once.

    The repeat runs at a quarter of the concurrency (at four times, where that is below 1).
    """
    other = endpoint.concurrency // _BATCH_STEP or endpoint.concurrency * _BATCH_STEP
    return PlainReference(
        first=continue_greedily(endpoint, prompts, tokens),
        again=continue_greedily(
            replace(endpoint, concurrency=other), prompts, tokens, backwards=True
        ),
        samples=sample_many(endpoint, prompts, sampling) if sampling else None,
    )


def check_lossless(
    endpoint: ModelEndpoint, plain: PlainReference, prompts: Prompts
) -> LosslessCheck:
    """Ask the speculating server the questions of ``plain`` and compare.

    - *fail*: greedy parity significantly below the plain server's own (one-sided McNemar p < 0.05)
      and a difference where the plain server's lead exceeds 1 nat and every lead that its own
      repeat overturned, both on two draws; or the sampling test's p < 0.01, confirmed by p < 0.05
      on a second draw; or an acceptance rate whose upper 95 % bound (Wilson) is below 2 %.
    - *unknown*: fewer than 8 prompts; failed requests or missing counters; such a difference, or
      such an acceptance rate, in too few prompts to be significant.
    - *pass*: otherwise. A parity lower by ties alone passes, because rounding explains it.

    A server that does not answer gives *unknown*; nothing is raised.
    """
    if prompts_identity(prompts) != plain.first.prompts_sha256:
        reason = "the plain server was asked other prompts; ask it again with these"
        return LosslessCheck(verdict="unknown", reasons=(reason,))
    before = _counters(endpoint)
    parity, findings = _compare_greedy(endpoint, prompts, plain)
    sampling, more = _compare_sampling(endpoint, prompts, plain.samples)
    after = _counters(endpoint)
    accepted, drafted = (_rise(before, after, name) for name in (ACCEPTED, DRAFT_TOKENS))
    findings = [*findings, *more, _judge_acceptance(accepted, drafted)]
    # The worst finding is the verdict; reasons are those that do not pass, or all of a pass.
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


def _compare_greedy(
    endpoint: ModelEndpoint, prompts: Prompts, plain: PlainReference
) -> tuple[GreedyParity | None, list[Finding]]:
    """Compare a first draw; a difference counts only as far as a second draw has it too.

    The second is asked in the opposite order, so in other batches, at the same concurrency.
    """
    first = _draw_greedy(endpoint, prompts, plain)
    if first[0] is None or first[0].prompts < MIN_PROMPTS or first[1][-1][0] == "pass":
        return first
    second = _draw_greedy(endpoint, prompts, plain, backwards=True)
    if second[0] is None:
        return first
    return max(first, second, key=lambda draw: _ORDER.index(draw[1][-1][0]))


def _draw_greedy(
    endpoint: ModelEndpoint, prompts: Prompts, plain: PlainReference, *, backwards: bool = False
) -> tuple[GreedyParity | None, list[Finding]]:
    greedy = continue_greedily(endpoint, prompts, plain.first.max_tokens, backwards=backwards)
    sides = {"": greedy, _PLAIN: plain.first, _AGAIN: plain.again}
    gaps: list[Finding] = [("unknown", at + s.missing) for at, s in sides.items() if s.missing]
    try:
        parity = greedy_parity(greedy, plain.first, plain.again)
        repeat = greedy_parity(plain.again, plain.first)
    except ValueError as error:
        return None, gaps or [("unknown", f"greedy text cannot be compared: {error}")]
    overturned = [one.margin for one in repeat.divergences if one.margin is not None]
    return parity, [*gaps, _judge_parity(parity, limit=max([TIE_NATS, *overturned]))]


def _judge_parity(parity: GreedyParity, *, limit: float) -> Finding:
    """Judge greedy parity; a lead of more than ``limit`` nats is not a tie."""
    result = (
        f"{parity.same} of {parity.prompts} greedy continuations equal the plain server's to the "
        f"end (its own repeat: {parity.aa_same})"
    )
    if parity.prompts < MIN_PROMPTS:
        return "unknown", _too_few(result, parity.prompts)
    different = [one for one in parity.divergences if one.at is not None]
    margins = [one.margin for one in different if one.margin is not None]
    beyond = [margin for margin in margins if margin > limit]
    significant = parity.p_value is not None and parity.p_value < SIGNIFICANCE
    if parity.p_value is not None:
        result += f", McNemar's exact p {parity.p_value:.2g}"
    if beyond:
        reason = (
            f"{result}; {len(beyond)} leave it where its own token leads by more than "
            f"{limit:.2g} nats (at most {max(beyond):.2g}), which rounding does not overturn"
        )
        return ("fail", reason) if significant else ("unknown", f"{reason}; give more prompts")
    if len(margins) < len(different) and significant:
        reason = "without log-probabilities a tie and a defect look the same"
        return "unknown", f"{result}; {reason}"
    if margins:
        result += f"; no difference where its token leads by more than {max(margins):.2g} nats"
    return "pass", result


def _compare_sampling(
    endpoint: ModelEndpoint, prompts: Prompts, plain: Samples | None
) -> tuple[TwoSample | None, list[Finding]]:
    """Test a first draw; a failure counts only if a second draw confirms it."""
    if plain is None:
        return None, [("pass", "sampled text was not compared: the plan asks for greedy text only")]

    def draw() -> tuple[TwoSample | None, list[Finding]]:
        samples = sample_many(endpoint, prompts, plain.sampling, backwards=True)
        sides = {"": samples, _PLAIN: plain}
        gaps: list[Finding] = [("unknown", at + s.missing) for at, s in sides.items() if s.missing]
        try:
            test = compare_samples(samples, plain)
        except ValueError as error:
            return None, gaps or [("unknown", f"sampled text cannot be compared: {error}")]
        return test, [*gaps, _judge_sampling(test)]

    first, findings = draw()
    if first is None or findings[-1][0] != "fail":
        return first, findings
    second, more = draw()
    if second is None:
        return first, [*findings, *more]
    verdict = _judge_sampling(second, first)
    return first if verdict[0] == "fail" else second, [*findings[:-1], *more[:-1], verdict]


def _judge_sampling(test: TwoSample, failed: TwoSample | None = None) -> Finding:
    """Judge the two-sample test on a first draw, or on a second after a ``failed`` one."""
    first = failed or test
    result = (
        f"{first.samples} samples of each of {first.prompts} prompts at temperature "
        f"{first.temperature:g}: MMD² {first.statistic:.2g}, permutation p {first.p_value:.2g}"
    )
    if failed is not None:
        result += f", and {test.p_value:.2g} on a second draw"
    elif test.prompts < MIN_PROMPTS:
        return "unknown", _too_few(result, test.prompts)
    if test.p_value < (SAMPLING_SIGNIFICANCE if failed is None else CONFIRMED):
        return "fail", f"{result}; {_OTHER_DISTRIBUTION}"
    return "pass", result if failed is None else f"{result}, so the first was chance"


def _too_few(result: str, prompts: int) -> str:
    return f"{result}; {prompts} prompts are too few: give at least {MIN_PROMPTS}"


def _judge_acceptance(accepted: int | None, drafted: int | None) -> Finding:
    if accepted is None or drafted is None:
        return "unknown", (
            "the server exports no counters of drafted and accepted tokens, so nothing shows "
            "that it speculates"
        )
    if drafted == 0:
        return "unknown", "nothing was drafted during the check: speculation was not tested"
    share = wilson(min(accepted, drafted), drafted)
    result = f"{accepted:,} of {drafted:,} drafted tokens were accepted ({share.value:.1%})"
    if share.high is not None and share.high < NEVER_ACCEPTED:
        return "fail", (
            f"{result}: the draft proposes tokens that the target never writes; it has another "
            "tokenizer or other training, and speculation only costs time"
        )
    if share.value < NEVER_ACCEPTED:
        return "unknown", f"{result}, too few drafts to show that it is not zero; give more prompts"
    return "pass", result


def _counters(endpoint: ModelEndpoint) -> Counters | None:
    """Read the engine's counters; None where the server exports none."""
    try:
        return scrape(endpoint.url, names=dict(endpoint.counter_names))
    except (EngineLostError, MeasurementError):
        return None


def _rise(before: Counters | None, after: Counters | None, name: str) -> int | None:
    """Return a counter's increase; None if it is missing or fell (the server restarted)."""
    if before is None or after is None:
        return None
    start, end = before.get(name) or 0.0, after.get(name)
    return None if end is None or end < start else round(end - start)
