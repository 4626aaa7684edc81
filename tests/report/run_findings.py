"""What was found: verdicts, quality, comparisons, the decision."""

from __future__ import annotations

from collections.abc import Iterator

from tests.report.run_texts import (
    CONCURRENCY,
    CONTRADICTED,
    FAILED,
    PRICE,
    VARIANTS,
    Texts,
    around,
    speed,
)
from whet.core.load import Load
from whet.core.records.decision import (
    CellDecision,
    Decision,
    Excluded,
    LeverEffect,
    LeverEffects,
    LimitAdvice,
    MatrixEntry,
    Recommendation,
)
from whet.core.records.evidence import Claim, Verdict
from whet.core.records.quality import QualityRecord, TaskAnswer, TaskExample, TaskScore
from whet.core.records.summary import Difference, Estimate


def verdicts(name: str, texts: Texts) -> Iterator[Verdict]:
    """Evidence for what the variant claims; the cache's claim fails at one concurrency."""
    weights = "4-bit Marlin kernel" if name.startswith("awq") else "16-bit weights"
    yield Verdict(
        variant=name,
        load=None,
        claim=Claim(kind="weights", statement=weights, expected="the log names it", per_cell=False),
        outcome="proved",
        observed="MarlinLinearKernel for 128 layers" if "awq" in name else "no quantized layer",
        sources=(texts.log_line,),
    )
    for size in CONCURRENCY:
        if "draft" in name:
            failed = (name, size) == FAILED
            yield Verdict(
                variant=name,
                load=Load.at(size),
                claim=Claim(
                    kind="speculation",
                    statement="speculation accepts tokens",
                    expected="drafted and accepted tokens rise in the timed window",
                    per_cell=True,
                ),
                outcome="unproved" if failed else "proved",
                observed="no counters: the engine died" if failed else "2.1 of 4 drafts accepted",
                sources=("vllm:spec_decode_num_accepted_tokens_total 1200 → 9310",),
            )
        if "cache" in name:
            wrong = (name, size) == CONTRADICTED
            yield Verdict(
                variant=name,
                load=Load.at(size),
                claim=Claim(
                    kind="prefix_cache",
                    statement="prefix cache hits",
                    expected="the hit rate is within 10 points of 60.0 %",
                    per_cell=True,
                ),
                outcome="contradicted" if wrong else "proved",
                observed="hit rate 31.0 %" if wrong else "hit rate 58.2 %",
                sources=("vllm:prefix_cache_hits_total 0 → 88120",),
            )


def quality(name: str, texts: Texts) -> QualityRecord:
    """Perplexity and two tasks; the quantized variants lose 0.6 %."""
    awq = name.startswith("awq")
    ratio = 1.006 if awq else 1.0
    return QualityRecord(
        variant=name,
        baseline="fp16",
        perplexity=around(6.41 * ratio, 0.02, 200),
        perplexity_ratio=Estimate(
            value=ratio, low=1.0032 if awq else 1.0, high=1.0088 if awq else 1.0, samples=200
        ),
        nll=((412.5, 220),),
        tasks=tuple(
            TaskScore(
                task=task,
                n=150,
                right=right - (2 if awq else 0),
                score=around((right - (2 if awq else 0)) / 150, 0.04, 150),
                baseline_right=right if awq else None,
                lost=3 if awq else None,
                gained=1 if awq else None,
                p_value=0.625 if awq else None,
            )
            for task, right in ((texts.task, 143), ("arithmetic", 127))
        ),
        answers=(TaskAnswer(id="j-1", task=texts.task, text=texts.answer, right=not awq),),
        examples=(
            TaskExample(
                task=texts.task,
                id="j-1",
                prompt="Extract the order and its status from the ticket.\nTicket: A-1041 …",
                expected='{"order": "A-1041", "status": "shipped"}',
                baseline='{"order": "A-1041", "status": "shipped"}',
                answer=texts.answer,
            ),
        )
        if awq
        else (),
        verdicts=((0.01, "pass"), (0.02, "pass"), (0.05, "pass")),
        reason=None,
        seconds=88.0,
    )


def difference(candidate: str, reference: str, size: int, *, family: int = 0) -> Difference:
    """One variant over another at one concurrency."""
    ratio = speed(candidate, size) / speed(reference, size)
    return Difference(
        metric="tps_mean",
        reference=reference,
        reference_load=Load.at(size),
        candidate=candidate,
        load=Load.at(size),
        ratio=around(ratio, 0.035, 3),
        family=family,
        different=family > 0 and abs(ratio - 1) > 0.035,
        starts_needed=3,
        detectable=0.06,
    )


def effects() -> LeverEffects:
    """Speculation over the same variant without it."""
    pairs = (("awq+draft", "awq", ()), ("awq+draft+cache", "awq+cache", ("prefix_cache",)))
    return LeverEffects(
        baseline="fp16",
        levers=("weights=awq", "speculation=draft_model K=4 by draft", "prefix_cache"),
        effects=tuple(
            LeverEffect(
                lever="speculation=draft_model K=4 by draft",
                context=("weights=awq", *context),
                load=Load.at(size),
                metric="tps_mean",
                reference=reference,
                candidate=candidate,
                ratio=difference(candidate, reference, size).ratio,
            )
            for candidate, reference, context in pairs
            for size in CONCURRENCY
            if (candidate, size) != FAILED
        ),
    )


def cell_decisions(texts: Texts) -> tuple[CellDecision, ...]:
    """One excluded cell of ``awq+cache``, all of ``awq+draft``, one that likely qualifies."""
    made = []
    for name in VARIANTS:
        for size in CONCURRENCY:
            status, detail = "qualifies", None
            if (name, size) == FAILED:
                status, detail = "excluded", "failed"
            elif (name, size) == CONTRADICTED:
                status, detail = "excluded", "evidence"
            elif name == "awq+draft":
                status, detail = "excluded", "quality"
            elif (name, size) == ("awq+cache", 8):
                status = "recommended"
            elif (name, size) == ("awq+draft+cache", 4):
                detail = "likely"
            elif size == 32:
                status, detail = "misses", "TTFT p95"
            made.append(
                CellDecision(
                    variant=name, load=Load.at(size), tier=texts.tier, status=status, detail=detail
                )
            )
    return tuple(made)


def decision(texts: Texts) -> Decision:
    """A matrix whose rows meet the limits, meet them likely, and hold nothing."""
    cost = around(PRICE / 3600 / speed("awq+cache", 8) * 1e6, 0.03, 3)
    base = around(PRICE / 3600 / speed("fp16", 32) * 1e6, 0.03, 3)
    matrix = []
    for target, meets in ((200.0, "yes"), (500.0, "likely"), (1000.0, None)):
        for tolerance in (0.01, 0.02, 0.05):
            none = meets is None
            matrix.append(
                MatrixEntry(
                    tier=texts.tier,
                    ttft_target_ms=target,
                    quality_tolerance=tolerance,
                    meets=meets,
                    variant=None if none else "awq+cache",
                    load=None if none else Load.at(8),
                    cost_per_1m_tokens=None if none else cost,
                    ttft_p95_ms=None if none else around(101.0, 0.1, 192),
                    reason="no cell has its p95 below the target" if none else "cheapest of 14",
                )
            )
    return Decision(
        baseline="fp16",
        reference="fp16",
        matrix=tuple(matrix),
        excluded=(
            Excluded(variant=FAILED[0], load=Load.at(FAILED[1]), reason=texts.failure),
            Excluded(
                variant=CONTRADICTED[0],
                load=Load.at(CONTRADICTED[1]),
                reason="prefix cache hits: hit rate 31.0 %, 60.0 % expected",
            ),
        ),
        recommendation=Recommendation(
            variant="awq+cache",
            load=Load.at(8),
            tier=texts.tier,
            ttft_target_ms=500.0,
            quality_tolerance=0.01,
            cost_per_1m_tokens=cost,
            ttft_p95_ms=Estimate(value=231.0, low=205.0, high=262.0, samples=480),
            tps_mean=Estimate(value=14_900.0, low=14_700.0, high=15_100.0, samples=480),
            meets="likely",
            advice=(LimitAdvice(metric="TTFT p95", limit_ms=500.0, starts=6),),
            cheaper=True,
            reference="fp16",
            reference_load=Load.at(8),
            reference_cost_per_1m_tokens=base,
            difference=difference("awq+cache", "fp16", 8, family=4),
            measured_again=True,
            saving=Estimate(value=0.362, low=0.331, high=0.39, samples=3),
            reasons=(
                "It is the cheapest of 14 cells that meet TTFT p95 < 500 ms and lose under 1 %.",
                "Its prefix hit rate of 58.2 % was counted by the engine; 60.0 % was built in.",
            ),
            cautions=("Another process slowed its cell down.",),
        ),
        cells=cell_decisions(texts),
        differences=(difference("awq+cache", "fp16", 8, family=4),),
    )
