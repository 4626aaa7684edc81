"""Two servers told: the table, the answer in words, the file."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from whet.core.records.against import ServerComparison, ServersCompared, ServerVerdict
from whet.core.records.summary import Estimate
from whet.report.bench.compare import against_json, answer, compare_section
from whet.report.writers.console import print_sections


def estimate(value: float, *, spread: float = 0.01, enough: bool = True) -> Estimate:
    low, high = value * (1 - spread), value * (1 + spread)
    return Estimate(value=value, low=low, high=high, samples=800, enough=enough)


def compared(
    metric: str,
    ratio: float,
    verdict: ServerVerdict,
    *,
    enough: bool = True,
) -> ServerComparison:
    return ServerComparison(
        metric=metric,
        a=estimate(100.0, enough=enough),
        b=estimate(100.0 * ratio, enough=enough),
        ratio=estimate(ratio, enough=enough),
        verdict=verdict,
    )


def view(*comparisons: ServerComparison, **change: Any) -> ServersCompared:
    return ServersCompared(**{
        "a": "http://a:1", "b": "http://b:2", "pairs": 4, "comparisons": comparisons, **change,
    })  # fmt: skip


SAME = compared("tps_mean", 1.0, "no difference")
MORE = compared("tps_mean", 1.25, "better")
LATE = compared("ttft_p50_ms", 1.5, "worse")
EARLY = compared("tpot_p50_ms", 0.8, "better")
DOUBTED = compared("ttft_p95_ms", 1.4, "worse", enough=False)


def printed(shown: ServersCompared, *, width: int = 120) -> str:
    out = io.StringIO()
    print_sections([compare_section(shown)], Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (
            view(MORE, EARLY, LATE, compared("rps_mean", 1.0, "no difference")),
            "B is better than A on throughput (+25.0%) and TPOT p50 (-20.0%), worse than A on "
            "TTFT p50 (+50.0%); no certain difference on the rest.",
        ),
        (view(LATE), "B is worse than A on TTFT p50 (+50.0%)."),
        (
            view(SAME),
            "No difference between A and B was observed; one of up to 1.0% in throughput "
            "could have gone undetected.",
        ),
        (
            view(SAME, DOUBTED),
            "No difference between A and B was observed; one of up to 1.0% in throughput "
            "could have gone undetected.",
        ),
        (
            view(compared("tps_mean", 2.0, "undecided"), pairs=1),
            "Nothing is decided by one pair of trials; measure at least one whole A B B A.",
        ),
        (view(pairs=0), "No trials could be compared: no run is usable on both servers."),
    ],
)
def test_the_answer_in_words(shown: ServersCompared, told: str) -> None:
    assert answer(shown) == told
    assert " ".join(told.split()) in " ".join(printed(shown).split())


def test_the_table_has_both_figures_and_the_ratio() -> None:
    lines = printed(view(MORE, LATE, DOUBTED)).splitlines()
    assert [line.strip() for line in lines[2:4]] == ["A: http://a:1", "B: http://b:2"]
    (more,) = [line for line in lines if line.startswith("throughput")]
    assert more.split() == [
        "throughput,", "tok/s", "100", "(99.0", "…", "101)", "125", "(124", "…", "126)", "1.25",
        "(1.24", "…", "1.26)", "better",
    ]  # fmt: skip
    (doubted,) = [line for line in lines if line.startswith("TTFT p95")]
    assert "100 ? (" in doubted
    assert "1.40 ? (" in doubted


def test_an_interval_that_is_not_known() -> None:
    bare = Estimate(value=5.0, low=None, high=None, samples=3, enough=False)
    item = ServerComparison(metric="e2e_p50_ms", a=bare, b=bare, ratio=bare, verdict="undecided")
    (line,) = [line for line in printed(view(item)).splitlines() if line.startswith("E2E")]
    assert line.split() == ["E2E", "p50,", "ms", *["5.00", "?"] * 3, "undecided"]
    assert answer(view(item, SAME)).startswith("No difference")


def test_warnings_and_names_are_made_harmless() -> None:
    said = printed(view(SAME, a="http://a\x1b[31m", warnings=("look\nhere [red]",)))
    assert "\x1b" not in said
    assert "! look here [red]" in said


def test_the_file_holds_both_sides_and_reads_back() -> None:
    shown = view(MORE, compared("ttft_p50_ms", 1.0, "undecided"), warnings=("w",))
    told = against_json(shown, {"url": "a"}, {"url": "b"}, interrupted=False)
    back = json.loads(json.dumps(told, allow_nan=False))
    assert (back["a"], back["b"]) == ({"url": "a"}, {"url": "b"})
    assert (back["pairs_compared"], back["interrupted"], back["warnings"]) == (4, False, ["w"])
    assert back["comparisons"][0]["metric"] == "tps_mean"
    assert back["comparisons"][0]["ratio"]["value"] == 1.25
    assert back["answer"] == answer(shown)
