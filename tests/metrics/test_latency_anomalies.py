"""Cells whose steps took longer than those of a fuller batch."""

from __future__ import annotations

from dataclasses import replace

from tests.report.run_setting import cell
from tests.report.run_texts import Texts
from whet.core.load import Load
from whet.core.records.engine import Speculation, Variant
from whet.core.records.summary import CellSummary, Estimate
from whet.metrics.latency_anomalies import LatencyAnomaly, latency_anomalies


def gap(size: int, value: float, *, spread: float = 0.01, variant: str = "awq") -> CellSummary:
    found = Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), samples=64)
    figures = {"itl_p50_ms": found}
    return replace(cell("awq", 1, Texts()), variant=variant, load=Load.at(size), figures=figures)


def test_a_step_that_grows_with_the_batch_is_as_it_should_be() -> None:
    assert (
        latency_anomalies([gap(1, 5.9), gap(4, 6.1), gap(256, 21.0), gap(1, 9.0, variant="b")])
        == ()
    )


def test_a_smaller_batch_with_longer_steps_was_held_up() -> None:
    """As seen on an H100: 8.40 ms at 1 in flight, 6.16 at 4, 6.30 at 8."""
    found = latency_anomalies([gap(8, 6.3), gap(1, 8.4), gap(4, 6.16)])
    assert found == (
        LatencyAnomaly(
            variant="awq", load=Load.at(1), gap_ms=8.4, fuller=Load.at(4), fuller_gap_ms=6.16
        ),
    )


def test_a_tenth_and_overlapping_intervals_show_nothing() -> None:
    assert latency_anomalies([gap(1, 6.7), gap(4, 6.16)]) == ()
    assert latency_anomalies([gap(1, 8.4, spread=0.2), gap(4, 6.16, spread=0.2)]) == ()


def test_cells_without_figures_are_left_out() -> None:
    failed = replace(gap(4, 1.0), status="failed", figures={})
    assert latency_anomalies([gap(1, 8.4), failed]) == ()


def test_steps_that_are_meant_to_shorten_are_no_sign() -> None:
    by_load = (("num_speculative_tokens_per_batch_size", "[[1,2,6],[3,8,2]]"),)
    variant = Variant(
        name="awq", weights="awq", scheme="W4A16", model_path="/m", prefix_cache=False,
        speculation=Speculation(method="eagle3", num_tokens=6, draft_path="/h", options=by_load),
    )  # fmt: skip
    cells = [gap(1, 8.4), gap(4, 6.16)]
    assert latency_anomalies(cells, [variant]) == ()
    assert latency_anomalies(cells, [replace(variant, name="other")]) != ()
