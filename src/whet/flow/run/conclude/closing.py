"""What to do about a run that recommends nothing."""

from __future__ import annotations

from whet.core.records.decision import Decision
from whet.core.run import Run

_OBJECTIVE = (
    "every cell was measured and none meets the objective with its evidence and quality; "
    "loosen objective.recommend_ttft_ms or recommend_quality, or add variants"
)


def why_nothing_qualifies(run: Run, decision: Decision) -> str:
    """Name the unproved claims and the key that accepts them, else the objective's keys.

    The claims are named only if each cell that they exclude has no contradicted claim.
    """
    excluded = {item.variant for item in decision.excluded if item.kind == "evidence"}
    unproved = [
        verdict
        for variant in sorted(excluded)
        if not any(v.variant == variant and v.outcome == "contradicted" for v in run.verdicts)
        for verdict in run.verdicts
        if verdict.variant == variant and verdict.outcome == "unproved"
    ]
    if not unproved:
        return _OBJECTIVE
    kinds = sorted({verdict.claim.kind for verdict in unproved})
    why = "; ".join(dict.fromkeys(f"{v.claim.kind}: {v.observed}" for v in unproved))
    return (
        f"no cell qualifies: the engine does not prove {', '.join(kinds)} ({why}); to accept "
        f"that without proof, add evidence: {{accept_unproved: [{', '.join(kinds)}]}} to the "
        "spec and run it again with --resume"
    )
