"""The status that every table shows for a cell."""

from dataclasses import replace

from tests.decision.cells import cell, decided, quality, tier
from whet.core.records.codec import decode, encode
from whet.core.records.decision import Decision

CELLS = [
    cell("fp16", 1, 2.00, 100),
    cell("fp16", 8, 1.00, 150),
    cell("awq", 8, 0.60, 150),
    cell("awq", 32, 0.30, 9000),
    cell("gptq", 8, 0.601, 499),
    cell("bad", 8, 0.10, 150),
    replace(cell("awq", 64, 0.10, 150), status="failed", failure="it died"),
    cell("lost", 8, 0.2, 150, errors=3),
]


def labels(decision: Decision) -> dict[tuple[str, int], str]:
    return {(item.variant, item.load.slots): item.label for item in decision.cells}


def test_each_cell_has_one_status() -> None:
    records = {name: quality(name) for name in ("fp16", "awq", "gptq", "lost")}
    records["bad"] = quality("bad", ("fail",) * 3)
    decision = decided(tier(CELLS, quality=records))
    assert labels(decision) == {
        ("fp16", 1): "qualifies",
        ("fp16", 8): "qualifies",
        ("awq", 8): "recommended",
        ("awq", 32): "misses TTFT p95",
        ("gptq", 8): "likely qualifies",
        ("bad", 8): "excluded: quality",
        ("awq", 64): "excluded: failed",
        ("lost", 8): "excluded: failed requests",
    }
    assert decision.qualified == ("fp16", "awq", "gptq")
    assert decode(Decision, encode(decision)) == decision


def test_without_evidence_nothing_qualifies() -> None:
    decision = decided(tier(CELLS[:2], verdicts=()))
    assert set(labels(decision).values()) == {"excluded: evidence"}
    assert decision.qualified == ()
