"""Where speculation stops paying, for every pattern of gains."""

import pytest

from tests.decision.cells import cell, decided, starts, tier, verdict
from whet.core.load import Load
from whet.core.records.decision import BreakEven

SIZES = (1, 4, 8, 16, 32)
PAIRS = {"awq+spec": "awq"}


def found(gains: dict[int, float]) -> BreakEven:
    """The record for throughput ratios by concurrency, of starts apart by half a percent."""
    plain = [cell("awq", size, 1.0, 100) for size in gains]
    fast = [cell("awq+spec", size, 1.0 / gain, 100) for size, gain in gains.items()]
    [record] = decided(tier([*plain, *fast]), speculation_pairs=PAIRS).break_even
    return record


@pytest.mark.parametrize(
    ("gains", "pays_up_to", "stops_at", "said"),
    [
        ((1.8, 1.6, 0.9, 0.8, 0.7), 4, 8, "stops paying at 8 (0.90×"),
        ((0.95, 0.9, 0.9, 0.8, 0.7), None, 1, "no sure gain at any measured concurrency"),
        ((1.8, 1.6, 1.4, 1.3, 1.2), 32, None, "it stops paying at a larger size"),
        ((1.8, 0.9, 1.3, 0.8, 0.7), 8, 16, "no sure gain at 4, below that"),
        ((1.8, 0.9, 0.9, 0.8, 1.2), 32, None, "no sure gain at 4, 8, 16"),
        ((1.8, 1.005, 0.9, 0.8, 0.7), 1, 4, "stops paying at 4 (1.00×"),
    ],
)
def test_patterns(
    gains: tuple[float, ...], pays_up_to: int | None, stops_at: int | None, said: str
) -> None:
    record = found(dict(zip(SIZES, gains, strict=True)))
    assert [edge and edge.slots for edge in (record.pays_up_to, record.stops_at)] == [
        pays_up_to,
        stops_at,
    ]
    assert said in record.sentence
    assert record.tier == "L4"


def test_one_start_claims_no_gain() -> None:
    cells = [cell("awq", 8, 1.0, 100), cell("awq+spec", 8, 0.5, 100)]
    one = tier(cells, throughput=starts(cells, count=1))
    [record] = decided(one, speculation_pairs=PAIRS).break_even
    assert (record.pays_up_to, record.stops_at) == (None, None)
    assert "one start has no interval, so it is open; at best 2.00×" in record.sentence


def test_a_size_without_evidence_is_not_measured() -> None:
    cells = [
        *(cell("awq", size, 1.0, 100) for size in (1, 8)),
        *(cell("awq+spec", size, 0.5, 100) for size in (1, 8)),
    ]
    proofs = [
        verdict("awq"),
        verdict("awq+spec", "proved", 1, "speculation"),
        verdict("awq+spec", "contradicted", 8, "speculation"),
    ]
    [record] = decided(tier(cells, verdicts=proofs), speculation_pairs=PAIRS).break_even
    assert (record.pays_up_to, record.stops_at) == (Load.at(1), None)


def test_no_common_size_is_said() -> None:
    cells = [cell("awq", 1, 1.0, 100), cell("awq+spec", 8, 0.5, 100)]
    [record] = decided(tier(cells), speculation_pairs=PAIRS).break_even
    assert (record.pays_up_to, record.stops_at) == (None, None)
    assert "unknown" in record.sentence
