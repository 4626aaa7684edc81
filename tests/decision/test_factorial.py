"""Levers alone and together, against squares worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.decision.cells import cell, comparison, estimate
from whet.core.records import (
    CellSummary,
    Comparison,
    Estimate,
    FactorialView,
    Interaction,
    LeverEffect,
    Speculation,
    Variant,
)
from whet.decision.factorial import factorial, find_levers, floor_of, joint
from whet.decision.ratios import SignificanceTest
from whet.levers import lever_diff

SPEC = Speculation(method="ngram", num_tokens=4, draft_path=None)
AWQ, SPEED, CACHE = "weights=awq", "speculation=ngram K=4", "prefix_cache"


def variant(name: str, **changes: Any) -> Variant:
    """``awq+spec`` and the like pull what their names say."""
    made = Variant(
        name=name,
        weights="awq" if "awq" in name else "16bit",
        scheme="W4A16" if "awq" in name else "16bit",
        model_path=f"/models/{name}",
        speculation=SPEC if "spec" in name else None,
        prefix_cache="cache" in name,
    )
    return replace(made, **changes)


def diffs(variants: Iterable[Variant], baseline: str = "fp16") -> dict[str, frozenset[str]]:
    """Each variant's labels that the baseline lacks."""
    named = {item.name: item for item in variants}
    return {name: lever_diff(item, named[baseline]) for name, item in named.items()}


def figured(name: str, figure: float | Estimate, batch: int = 16, **changes: Any) -> CellSummary:
    """A cell whose throughput is the figure, by default known within 1 %."""
    tps = figure if isinstance(figure, Estimate) else estimate(figure)
    return cell(name, batch, 1.0, 100.0, tps_mean=tps, ttft_p95_ms=None, **changes)


def viewed(
    figures: Mapping[str, float | Estimate],
    floor: float | None = 0.0,
    comparisons: tuple[Comparison, ...] = (),
) -> FactorialView:
    """The view of one batch size; ``fp16`` is the baseline."""
    cells = [figured(name, figure) for name, figure in figures.items()]
    significance = SignificanceTest(comparisons=comparisons, noise_floor=floor)
    return factorial(
        cells, diffs(variant(name) for name in figures), baseline="fp16", significance=significance
    )


def square(
    together: float | Estimate, floor: float | None = 0.0, **corners: float | Estimate
) -> Interaction:
    """100 tok/s, 150 with AWQ, 120 with speculation, and both."""
    figures = {"fp16": 100.0, "awq": 150.0, "spec": 120.0, "awq+spec": together, **corners}
    [found] = viewed(figures, floor).interactions
    return found


def exact(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low or value, high=high or value, samples=200)


def only_effect(view: FactorialView, lever: str, context: tuple[str, ...] = ()) -> LeverEffect:
    [found] = [x for x in view.effects if (x.lever, x.context) == (lever, context)]
    return found


def test_effects_alone_and_in_company() -> None:
    view = viewed({"fp16": 100, "awq": 150, "spec": 120, "awq+spec": 171})
    assert view.levers == (AWQ, SPEED)
    values = {(item.lever, item.context): item.ratio.value for item in view.effects}
    assert values == pytest.approx(
        {(AWQ, ()): 1.5, (SPEED, ()): 1.2, (AWQ, (SPEED,)): 1.425, (SPEED, (AWQ,)): 1.14}
    )
    assert {item.verdict for item in view.effects} == {"better"}
    assert only_effect(view, SPEED, (AWQ,)).reference == "awq"


def test_a_perfect_product_multiplies() -> None:
    found = square(180.0)
    assert (found.levers, found.context, found.verdict) == ((AWQ, SPEED), (), "multiplicative")
    assert found.observed.value == pytest.approx(1.8)
    assert found.product.value == pytest.approx(1.8)
    # Arms ln(1/0.99) = 0.0100503 and ln(1.01) = 0.0099503, two of each in squares: 0.0200007.
    assert found.ratio.low == pytest.approx(0.980198, abs=1e-6)
    assert found.ratio.high == pytest.approx(1.020202, abs=1e-6)
    assert "they multiply; an interaction of up to 2% could stay undetected" in found.sentence


@pytest.mark.parametrize(
    ("together", "verdict", "said"),
    [
        (
            151.2,
            "fight",
            "0.84× [0.82 … 0.86] the product of their separate effects: they interfere",
        ),
        (
            207.0,
            "help",
            "1.15× [1.13 … 1.17] the product of their separate effects: they help one another",
        ),
    ],
)
def test_levers_that_do_not_multiply(together: float, verdict: str, said: str) -> None:
    found = square(together)
    assert found.verdict == verdict
    assert found.sentence == f"throughput at 16: {AWQ} × {SPEED} have {said}"


def test_each_corner_widens_the_side_that_it_stands_on() -> None:
    corners = {"fp16": exact(100), "awq": exact(150), "spec": exact(120)}
    above = square(exact(180), **{**corners, "fp16": exact(100, low=90)})
    assert (above.ratio.low, above.ratio.high) == pytest.approx((0.9, 1.0))
    below = square(exact(180), **{**corners, "awq": exact(150, low=135)})
    assert (below.ratio.low, below.ratio.high) == pytest.approx((1.0, 1 / 0.9))
    # The baseline's own cell stands below both effects: their product has it squared.
    assert (above.product.low, above.product.high) == pytest.approx((1.8, 1.8 / 0.81))


def test_what_shares_a_cell_may_move_together() -> None:
    made = joint([exact(2, low=1.8, high=2.2), exact(5, low=4, high=6)])
    assert (made.value, made.low, made.high) == pytest.approx((10.0, 7.2, 13.2))
    unbounded = Estimate(value=2, low=1.8, high=None, samples=9, certified=False)
    open_ended = joint([unbounded, exact(5)])
    assert (open_ended.low, open_ended.high, open_ended.samples) == (None, None, 9)
    assert not open_ended.certified


def test_the_runs_own_comparisons_make_the_interaction() -> None:
    # Limits 1 % to either side: arms ln(1/0.99) and ln(1.01) once from each of two ratios.
    told = (
        comparison("awq", "awq+spec", 16, 1.2, "better"),
        comparison("spec", "fp16", 16, 0.5, "worse"),
    )
    figures = {"fp16": 100, "awq": 150, "spec": 120, "awq+spec": 180}
    [found] = viewed(figures, 0.02, told).interactions
    assert found.ratio.value == pytest.approx(1.2 / 2)
    assert found.ratio.low == pytest.approx(0.6 * math.exp(-math.hypot(0.0100503, 0.0100503)))
    assert found.ratio.high == pytest.approx(0.6 * math.exp(math.hypot(0.0099503, 0.0099503)))


def test_a_wide_interval_is_no_proof_that_levers_multiply() -> None:
    rough = {name: estimate(x, 0.1) for name, x in (("fp16", 100), ("awq", 150), ("spec", 120))}
    found = square(estimate(180, 0.1), **rough)
    assert found.ratio.low is not None
    assert found.ratio.low < 1
    assert found.verdict == "undecided"
    assert "could stay undetected" in found.sentence


def test_without_an_interval_nothing_is_decided() -> None:
    found = square(151.2, awq=Estimate(value=150, low=None, high=None, samples=9))
    assert found.ratio.value == pytest.approx(0.84)
    assert (found.ratio.low, found.verdict) == (None, "undecided")
    assert "one start: no verdict" in found.sentence


def test_a_floor_hides_a_small_interaction() -> None:
    # 172.8 over 180 is 0.96: 4.08 % on the log scale. √2 · ln 1.03 = 4.18 %, √2 · ln 1.02 = 2.80 %.
    corners = {"fp16": exact(100), "awq": exact(150), "spec": exact(120)}
    hidden = square(exact(172.8), floor=0.03, **corners)
    assert hidden.verdict == "multiplicative"
    assert hidden.noise_floor == pytest.approx(0.042689, abs=1e-6)
    assert square(exact(172.8), floor=0.02, **corners).verdict == "fight"
    assert square(exact(172.8), floor=None, **corners).verdict == "fight"


def test_a_large_noise_is_no_proof_that_levers_multiply() -> None:
    assert square(172.8, floor=0.2).verdict == "undecided"


@pytest.mark.parametrize(
    ("powers", "widening"),
    [((1, -1), 1.0), ((1, 1, -1, -1), math.sqrt(2)), ((1, 2, -1, -1, -1), 2)],
)
def test_the_floor_grows_with_the_cells(powers: tuple[int, ...], widening: float) -> None:
    assert math.log1p(floor_of(0.05, powers)) == pytest.approx(widening * math.log(1.05))


def test_a_latency_is_turned_over() -> None:
    # 100 → 50 and 80 ms are 2 and 1.25 times as fast; 50 ms for both is 2 of the expected 2.5.
    cells = [
        replace(figured(name, 100), ttft_p95_ms=estimate(ms))
        for name, ms in {"fp16": 100.0, "awq": 50.0, "spec": 80.0, "awq+spec": 50.0}.items()
    ]
    view = factorial(
        cells,
        diffs(variant(item.variant) for item in cells),
        baseline="fp16",
        significance=SignificanceTest(comparisons=(), noise_floor=0.0),
    )
    [found] = [item for item in view.interactions if item.metric == "ttft_p95_ms"]
    assert (found.observed.value, found.product.value) == pytest.approx((2.0, 2.5))
    assert (found.ratio.value, found.verdict) == (pytest.approx(0.8), "fight")
    assert found.sentence.startswith("1/TTFT p95 at 16: ")


def test_an_uncertified_percentile_says_so() -> None:
    figures = {"fp16": 100.0, "awq": 150.0, "spec": 120.0}
    found = square(estimate(151.2, certified=False), **figures)
    assert not found.ratio.certified
    assert found.sentence.endswith("too few requests to certify the percentile")


def test_a_missing_corner_is_named() -> None:
    view = viewed({"fp16": 100, "awq": 150, "awq+spec": 180})
    assert view.interactions == ()
    assert view.unmeasured == (
        f"{AWQ} × {SPEED}: not measurable: no eligible cell has only {SPEED}",
    )


def test_corners_at_unlike_batch_sizes_make_no_square() -> None:
    sizes = {"fp16": 1, "awq": 1, "spec": 8, "awq+spec": 8}
    view = factorial(
        [figured(name, 100, size) for name, size in sizes.items()],
        diffs(variant(name) for name in sizes),
        baseline="fp16",
        significance=SignificanceTest(comparisons=(), noise_floor=None),
    )
    assert view.interactions == ()
    assert view.unmeasured == (
        f"{AWQ} × {SPEED}: not measurable: no batch size has all four corners",
    )


def test_a_square_may_stand_on_other_levers() -> None:
    view = viewed(
        {"fp16": 90, "awq": 100, "awq+spec": 150, "awq+cache": 120, "awq+spec+cache": 180}
    )
    [found] = view.interactions
    assert (found.levers, found.context) == ((SPEED, CACHE), (AWQ,))
    assert found.ratio.value == pytest.approx(1.0)
    assert "throughput at 16, with weights=awq: " in found.sentence
    assert len(view.unmeasured) == 2


def test_all_levers_together_are_held_against_each_alone() -> None:
    figures = {"fp16": exact(100, low=90), "awq": exact(150), "spec": exact(120)}
    figures |= {"cache": exact(110), "awq+spec+cache": exact(99)}
    [found] = viewed(figures).interactions
    assert found.levers == (AWQ, SPEED, CACHE)
    assert found.product.value == pytest.approx(1.5 * 1.2 * 1.1)
    assert found.ratio.value == pytest.approx(0.5)
    # The baseline stands in it squared: 0.9² below.
    assert (found.ratio.low, found.ratio.high) == pytest.approx((0.405, 0.5))


def test_a_full_factorial_has_every_square() -> None:
    names = ["fp16", "awq", "spec", "cache", "awq+spec", "awq+cache", "spec+cache"]
    view = viewed(dict.fromkeys([*names, "awq+spec+cache"], 100))
    assert len(view.effects) == 12  # the edges of a cube
    assert len(view.interactions) == 7  # its faces, and the whole
    assert view.unmeasured == ()


def test_the_runs_own_comparison_is_the_effect_whichever_way_it_was_made() -> None:
    turned = comparison("awq", "fp16", 16, 0.8, "worse")
    view = viewed({"fp16": 100, "awq": 150}, comparisons=(turned,))
    effect = only_effect(view, AWQ)
    assert (effect.ratio.value, effect.verdict) == (pytest.approx(1.25), "better")
    assert (effect.ratio.low, effect.ratio.high) == pytest.approx((1 / 0.808, 1 / 0.792))
    assert effect.noise_floor == pytest.approx(0.02)


def test_a_variant_without_levers_of_its_own_is_left_out_and_named() -> None:
    cells = [figured("fp16", 100), figured("twin", 50), figured("awq", 150)]
    view = factorial(
        cells,
        diffs([variant("twin"), variant("fp16"), variant("awq")]),
        baseline="fp16",
        significance=SignificanceTest(comparisons=(), noise_floor=None),
    )
    assert only_effect(view, AWQ).ratio.value == pytest.approx(1.5)
    assert view.unmeasured == ("twin sets the same levers as fp16, and is left out here",)
    names = ("fp16", "twin", "awq", "awq+spec")
    told = factorial(
        [figured(name, 100) for name in names],
        diffs(variant(name) for name in names),
        baseline="fp16",
        significance=SignificanceTest(comparisons=(), noise_floor=None),
    )
    assert told.unmeasured[0].startswith("twin "), "before pairs, of which there may be many"
    assert len(told.unmeasured) == 2


def test_levers_that_no_variant_has_apart_are_one() -> None:
    kv = (("kv_cache_dtype", "fp8"), ("max_model_len", 512))
    plain = (("max_model_len", 512),)
    levers, sets = find_levers(
        diffs(
            [
                variant("fp16", engine_args=plain),
                variant("awq", engine_args=kv),
                variant("awq+spec", engine_args=kv),
            ]
        ),
    )
    assert levers == ("weights=awq + kv_cache_dtype=fp8", SPEED)
    assert sets["awq+spec"] == frozenset(levers)


def test_the_size_of_the_pool_is_a_lever_only_where_nothing_else_differs() -> None:
    def sized(name: str, room: int) -> Variant:
        return variant(name, engine_args=(("kv_cache_memory_bytes", room),))

    run = [sized("fp16", 45), sized("awq", 43), sized("awq+spec", 56)]
    levers, sets = find_levers(diffs(run))
    assert levers == (AWQ, SPEED)
    assert sets["awq+spec"] == frozenset(levers)
    levers, _ = find_levers(diffs([*run, replace(run[1], name="small")]))
    assert levers == (AWQ, SPEED), "a twin in all is no reason"
    levers, _ = find_levers(diffs([*run, sized("awq2", 12)]))
    assert "kv_cache_memory_bytes=12" in levers


def test_a_run_in_which_nothing_counts_tells_nothing() -> None:
    view = factorial(
        [],
        diffs([variant("fp16"), variant("awq+spec")]),
        baseline="fp16",
        significance=SignificanceTest(comparisons=(), noise_floor=None),
    )
    assert (view.effects, view.interactions, view.unmeasured) == ((), (), ())
