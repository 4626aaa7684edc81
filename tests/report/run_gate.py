"""Everything that the quality gate looked at, added to the synthetic run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.report.run_findings import quality
from tests.report.run_texts import HOSTILE, NASTY, VARIANTS, Texts, around
from whet.core.records.quality import QualityRecord, TaskScore
from whet.core.records.quality_checks import (
    DegenerateTraffic,
    Divergence,
    GreedyParity,
    LosslessCheck,
    ServerDistances,
    TokenIdentity,
    TwoSample,
)
from whet.core.records.summary import Estimate
from whet.core.store import RunStore

CLEAN = DegenerateTraffic(
    variant="fp16",
    answers=1200,
    found=(),
    baseline_share=None,
    p_value=None,
    examples=(),
    verdict="pass",
    reason="0 of 1200 timed answers are degenerate text",
)


def put_gate(root: Path, *, hostile: bool = False) -> RunStore:
    """Store the gate's records below ``root``; ``hostile`` texts try to break out."""
    texts, foreign = (NASTY, f" {HOSTILE}") if hostile else (Texts(), "")
    with RunStore.open(root, resume=True) as store:
        for name in VARIANTS:
            store.put("quality", name, gated_quality(name, texts, foreign))
        store.put("degenerate", "fp16", CLEAN)
        store.put("degenerate", "awq", degenerate(foreign))
    return RunStore.read(root)


def distances(scale: float = 1.0, *, enough: bool = False) -> ServerDistances:
    """Mean KL of 12.3 millinats, its p99 not certified, 3.1 % of positions flipped."""
    return ServerDistances(
        kl=around(0.0123 * scale, 0.04, 64),
        kl_p99=Estimate(value=0.21 * scale, low=None, high=None, samples=420, enough=enough),
        flips=around(0.031 * scale, 0.1, 64),
        top_k=20,
        documents=(),
    )


def gated_quality(name: str, texts: Texts, foreign: str = "") -> QualityRecord:
    """The factory's record and what each kind of variant is asked beside it."""
    awq, spec = name.startswith("awq"), "draft" in name
    first = "awq" if awq else "fp16"
    plain = quality(name, texts)
    return replace(
        plain,
        tasks=(*map(_paired, plain.tasks), graded(paired=awq)),
        verdicts=((0.01, "unknown"), (0.02, "pass"), (0.05, "pass")) if awq else plain.verdicts,
        reason=f"perplexity changes by +0.60 % [+0.32 %, +1.08 %], which 200 documents cannot "
        f"tell from 1 %; give more held-out text{foreign}"
        if awq
        else None,
        distances=distances() if awq else None,
        twin=first,
        twin_distances=distances(0.0005 if name == first else 0.0008, enough=True),
        identity=TokenIdentity(
            checked=8192,
            problems=(f"token 17 is written as 'a', and as 'b' by the baseline{foreign}",)
            if name == "awq+cache"
            else (),
            missing=f"/tokenize failed on 16 texts (HTTP 404){foreign}" if spec else None,
        ),
        lossless=lossless(foreign) if spec else None,
    )


def _paired(score: TaskScore) -> TaskScore:
    if score.p_value is None:
        return score
    return replace(score, difference=Estimate(value=-0.0133, low=-0.04, high=0.0067, samples=150))


def graded(*, paired: bool) -> TaskScore:
    """A summary task with a mean grade of 0.412, 1.8 points below the baseline's."""
    return TaskScore(
        task="summary",
        n=40,
        right=11,
        score=around(0.412 if paired else 0.43, 0.1, 40),
        baseline_right=12 if paired else None,
        lost=19 if paired else None,
        gained=12 if paired else None,
        p_value=0.0713 if paired else None,
        difference=Estimate(value=-0.018, low=-0.039, high=0.004, samples=40) if paired else None,
        graded=True,
    )


def lossless(foreign: str = "") -> LosslessCheck:
    """Three of sixteen continuations differ, one where nobody knows the margin."""
    return LosslessCheck(
        parity=GreedyParity(
            prompts=16,
            same=13,
            aa_same=15,
            p_value=0.25,
            divergences=(
                *(Divergence(id=f"t-{at}", tokens=64, at=None, margin=None) for at in range(13)),
                Divergence(id="near", tokens=64, at=12, margin=0.03),
                Divergence(id=f"far{foreign}", tokens=64, at=1, margin=0.42),
                Divergence(id="blind", tokens=9, at=0, margin=None),
            ),
        ),
        sampling=TwoSample(
            prompts=16, samples=8, temperature=1.0, statistic=-0.0004, p_value=0.613
        ),
        acceptance_rate=0.6213,
        drafted=5120,
        verdict="pass",
        reasons=(f"13 of 16 greedy continuations are the plain server's to the end{foreign}",),
    )


def degenerate(foreign: str = "") -> DegenerateTraffic:
    """Eleven of forty timed answers say nothing."""
    return DegenerateTraffic(
        variant="awq",
        answers=40,
        found=(("one mark", 9), ("loop", 2)),
        baseline_share=0.0,
        p_value=1e-9,
        examples=(f"```{foreign}", "!" * 64),
        verdict="fail",
        reason=f"11 of 40 are degenerate{foreign}",
    )
