"""The front over cost, tail TTFT and quality."""

from tests.decision.cells import cell, decided, quality, tier
from whet.core.load import Load


def test_the_front_keeps_what_nothing_beats_cheapest_first() -> None:
    cells = [
        cell("fp16", 1, 3.0, 50),  # quickest and truest
        cell("fp16", 8, 1.0, 200),
        cell("awq", 8, 0.6, 200),
        cell("awq", 4, 0.8, 250),  # beaten by awq at 8
        cell("slow", 8, 0.7, 300),  # beaten by awq at 8
    ]
    records = {
        "fp16": quality("fp16", ratio=1.0),
        "awq": quality("awq", ratio=1.005),
        "slow": quality("slow", ratio=1.006),
    }
    decision = decided(tier(cells, quality=records))
    assert decision.pareto == (
        ("awq", Load.at(8)),
        ("fp16", Load.at(8)),
        ("fp16", Load.at(1)),
    )


def test_equal_points_are_both_kept() -> None:
    decision = decided(tier([cell("a", 8, 1.0, 100), cell("b", 8, 1.0, 100)]))
    assert decision.pareto == (("a", Load.at(8)), ("b", Load.at(8)))


def test_wrong_or_unknown_answers_are_on_no_front() -> None:
    cells = [cell(name, 8, 1.0, 100) for name in ("fp16", "broken", "unknown")]
    records = {
        "fp16": quality("fp16", ratio=1.0),
        "broken": quality("broken", ("fail",) * 3, ratio=1.2),
        "unknown": quality("unknown", ("unknown",) * 3, ratio=None),
    }
    assert decided(tier(cells, quality=records)).pareto == (("fp16", Load.at(8)),)
