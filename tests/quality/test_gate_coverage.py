"""The perplexity rule at 60 documents: coverage, wrong verdicts, broken documents, clusters."""

import numpy as np
import pytest
from benchmarks.gate_coverage import BROKEN_SHARE, draw, perplexity_row

SAMPLES = 4000
"""The standard error of a share of 5 % or 95 % is then 0.35 points."""


@pytest.mark.parametrize("losses", ["normal", "t, 3 df", "lognormal 1"])
def test_sixty_documents_keep_the_gates_promise(losses: str) -> None:
    row = perplexity_row(losses, 60, SAMPLES)
    assert 0.93 <= row["coverage"] <= 0.97
    assert row["pass_at_1"] <= 0.05
    assert row["fail_at_0.9"] <= 0.05
    assert row["document_rule_fails"] <= 0.02


def test_the_document_rule_sees_every_sample_that_holds_a_broken_document() -> None:
    """A mean passes in a third of the samples; 0.98⁶⁰ = 30 % of them hold no broken document."""
    rng = np.random.default_rng(1)
    for documents in (60, 200):
        fails = np.mean([draw("2% broken", documents, rng).broken() for _ in range(2000)])
        assert fails == pytest.approx(1 - (1 - BROKEN_SHARE) ** documents, abs=0.03)
