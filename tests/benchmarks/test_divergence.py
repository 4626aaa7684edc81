"""The paired tests between quantized checkpoints."""

import pytest
from benchmarks.divergence import document_rows, pair_rows

from whet.quality.statistics import document_mean

SUMS = {
    ("whet", "awq"): [(0.04, 20), (0.09, 30), (0.05, 10), (0.02, 10)],
    ("whet", "gptq"): [(0.02, 20), (0.03, 30), (0.03, 10), (0.03, 10)],
    ("peer", "awq"): [(0.05, 20), (0.09, 30), (0.07, 10), (0.02, 10)],
    ("peer", "gptq"): [(0.02, 20), (0.06, 30), (0.03, 10), (0.04, 10)],
}


def test_methods_of_one_tool_and_tools_of_one_method_are_compared() -> None:
    rows = list(pair_rows(SUMS, {"model": "demo"}))
    assert [(row["first"], row["second"]) for row in rows] == [
        ("whet awq", "whet gptq"),
        ("whet awq", "peer awq"),
        ("whet gptq", "peer gptq"),
        ("peer awq", "peer gptq"),
    ]
    first = rows[0]
    assert (first["model"], first["documents"], first["first_larger"]) == ("demo", 4, 3)
    assert first["first_kl"] == pytest.approx(1e3 * 0.2 / 70)
    assert first["difference"] == pytest.approx(1e3 * 0.09 / 70)
    pairs = [(0.02, 20), (0.06, 30), (0.02, 10), (-0.01, 10)]
    interval = document_mean(pairs)
    assert interval.low is not None
    assert first["low"] == pytest.approx(1e3 * interval.low)
    assert first["p"] == 0.25, "4 of 16 sign patterns are as far from zero"
    assert first["detectable"] == pytest.approx(2.8 / 3.92 * (first["high"] - first["low"]))


def test_every_document_of_every_checkpoint_is_a_row() -> None:
    rows = list(document_rows(SUMS, {"seed": 1}))
    assert len(rows) == 16
    assert rows[1] == {
        "seed": 1,
        "tool": "whet",
        "method": "awq",
        "document": 1,
        "tokens": 30,
        "kl_sum": 0.09,
    }
