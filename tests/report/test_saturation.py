"""A search told: every reason to stop, every warning, the file and the picture."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.metrics.events import event, failed, trial
from whet.core.errors import Interrupted, MeasurementError
from whet.core.records.load import TrialRecord
from whet.core.records.objective import (
    Bound,
    Saturation,
    SearchObjective,
    SearchResult,
)
from whet.metrics.objective import judge, judge_attainment
from whet.metrics.objective_text import parse_objective
from whet.metrics.request_groups import request_groups
from whet.metrics.saturation import SearchPlan, find_saturation
from whet.report.bench.saturation import (
    answer,
    saturation_json,
    search_section,
    warnings,
)
from whet.report.writers.console import print_sections

ASKED = parse_objective("ttft:median<50ms;error<10%")
BOUNDS = (Bound(metric="ttft", limit_ms=50),)


def served(ttft_ms: float, count: int = 200) -> TrialRecord:
    """One request each 60 ms, whatever becomes of the others."""
    made = trial([event(start_ms=60 * n, ttft_ms=ttft_ms, index=n) for n in range(count)])
    return replace(made, loop="open")


def view(
    trial_at: Callable[[float], TrialRecord], *, share: bool = False, **plan: Any
) -> SearchResult:
    """A search from 4 within 1 to 64 over trials made by hand."""
    trials: list[TrialRecord] = []

    def measure(level: float, _: int) -> Any:
        trials.append(replace(trial_at(level), trial=len(trials)))
        if share:
            return judge_attainment(request_groups(trials[-1:]), BOUNDS, share=0.9)
        return judge(request_groups(trials[-1:]), ASKED)

    given = {"start": 4, "lowest": 1, "limit": 64, "tolerance": 0.2, **plan}
    return SearchResult(
        axis="rate",
        saturation=find_saturation(measure, SearchPlan(**given)),
        trials=tuple(trials),
        objective=SearchObjective(bounds=BOUNDS) if share else SearchObjective(constraints=ASKED),
    )


def five_ms_a_level(level: float) -> TrialRecord:
    return served(5 * level)


def printed(shown: SearchResult, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_sections([search_section(shown)], console)
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def table_lines(text: str) -> list[str]:
    """The lines that end in an answer."""
    ends = ("met", "missed", "undecided")
    return [line for line in map(str.strip, text.splitlines()) if line.endswith(ends)]


def test_found() -> None:
    """5 ms a level: 8 has 40 ms, 10 has 50 ms, which is not below 50."""
    shown = view(five_ms_a_level)
    said = answer(shown)
    assert "highest load that met the objective is 9 requests/s; 10 requests/s was" in said
    assert "missed (the bracket is as narrow as requested)" in said
    assert warnings(shown) == ()


def test_never_met() -> None:
    said = answer(view(lambda _: served(80)))
    assert said.startswith("No load met the objective; 1 requests/s was missed (there is no lower")


def test_never_missed() -> None:
    said = answer(view(lambda _: served(1)))
    assert "is 64 requests/s, and none was missed (there is no higher level" in said


@pytest.mark.parametrize(
    ("budget", "told"),
    [
        (1, "is 4 requests/s, and none was missed (the budget"),
        (3, "is 8 requests/s; 16 requests/s was missed (the budget"),
    ],
)
def test_a_spent_budget(budget: int, told: str) -> None:
    assert told in answer(view(five_ms_a_level, budget=budget))


def test_a_budget_spent_on_the_way_down() -> None:
    said = answer(view(lambda _: served(80), budget=2))
    assert "No load met the objective; 2 requests/s was missed (the budget" in said


def test_stopped_and_failed_searches_say_so_instead() -> None:
    shown = view(five_ms_a_level, budget=3)
    assert "(stopped on request)" in answer(replace(shown, error=Interrupted("stopped on request")))
    assert "(ended early: it went away)" in answer(
        replace(shown, error=MeasurementError("it went\naway."))
    )


def nothing(**given: Any) -> SearchResult:
    return SearchResult(
        axis="concurrency",
        saturation=Saturation(
            highest_met=None, lowest_missed=None, stopped="budget", measurements=(),
            undecided_levels=(),
        ),
        trials=(), objective=SearchObjective(constraints=ASKED), **given,
    )  # fmt: skip


def test_nothing_measured() -> None:
    shown = nothing(error=Interrupted("stopped on request"))
    assert printed(shown).strip() == "No load was decided (stopped on request)."
    assert saturation_json(shown)["measurements"] == []


def test_the_table_has_a_line_a_measurement_by_level() -> None:
    told = printed(view(five_ms_a_level))
    lines = table_lines(told)
    assert [line.split()[0] for line in lines] == ["4", "8", "9", "10", "12", "16"]
    assert [line.split()[-1] for line in lines] == ["met"] * 3 + ["missed"] * 3
    assert "40.0 (40.0 … 40.0)" in lines[1]
    assert "16.7" in lines[1]  # 200 requests in 199 × 60 + 60 ms
    assert "0.0% (0.0% … 1.9%)" in lines[1]


def test_figures_among_failures_are_missing_and_never_zero() -> None:
    storm = [failed(start_ms=n) for n in range(40)]
    shown = view(lambda level: served(10) if level < 8 else trial(storm), budget=2)
    cells = table_lines(printed(shown))[-1].split()
    assert cells[:8] == ["8", "40", "40", "–", "–", "–", "–", "–"]
    told = saturation_json(shown)["measurements"][-1]
    assert (told["completed"], told["failed"], told["mean_ttft_ms"]) == (0, 40, None)


def test_every_measurement_keeps_its_requests_one_by_one() -> None:
    """In seconds, as in the JSON of one load; a request that failed has no latency."""
    made = served(10, count=2)
    mixed = replace(made, requests=(*made.requests, failed(start_ms=60)))
    told = saturation_json(view(lambda _: mixed, budget=1))["measurements"][0]
    assert told["ttfts"] == [0.01, 0.01, None]
    assert told["latencies"] == [0.03, 0.03, None]
    assert told["start_times"] == [0.0, 0.06, 0.06]
    assert told["output_lens"] == [5, 5, 5]
    assert told["errors"] == ["", "", "timeout: scripted"]
    json.dumps(told, allow_nan=False)


def test_attainment_is_a_share() -> None:
    shown = view(five_ms_a_level, share=True)
    told = printed(shown)
    assert "90% of requests within ttft:50" in " ".join(told.split())
    assert "100% (98.1% … 100%)" in told


def test_a_percentile_of_too_few_requests_carries_its_mark() -> None:
    told = printed(view(lambda _: served(5, count=60), budget=1))
    assert "5.00 ?" in told


def test_an_undecided_level_is_a_warning_with_what_would_decide_it() -> None:
    def wavering(level: float) -> TrialRecord:
        late = [event(start_ms=60 * n, ttft_ms=40 + 19 * (n % 2), index=n) for n in range(200)]
        return served(10) if level < 8 else replace(trial(late), loop="open")

    shown = view(wavering, max_effort=2)
    assert shown.saturation.undecided_levels
    assert "stayed undecided, which counts as missed" in answer(shown)
    assert any("stayed undecided, counted as missed" in said for said in warnings(shown))


def test_a_load_that_was_too_short_is_undecided_and_says_how_long_it_takes() -> None:
    """Forty requests within 39 ms that take 45 ms each: 100 lifetimes are 4.5 s."""
    made = trial([event(start_ms=n, ttft_ms=25, index=n) for n in range(40)])
    shown = view(lambda _: replace(made, loop="open"), limit=4, budget=1)
    ((ttft, errors),) = [each.outcome.judgements for each in shown.saturation.measurements]
    assert {ttft.verdict, errors.verdict} == {"undecided"}
    assert ttft.reason is not None
    assert "0.039 s are too short" in ttft.reason
    assert "about 4.5 s would give one" in ttft.reason


@pytest.mark.parametrize("share", [False, True])
def test_the_file_is_plain_json(share: bool) -> None:
    shown = view(five_ms_a_level, share=share)
    told = json.loads(json.dumps(saturation_json(shown), allow_nan=False))
    ends = (10, 12) if share else (9, 10)  # 50 ms is within 50, and not below 50
    assert (told["highest_met"], told["lowest_missed"], told["stopped"]) == (*ends, "found")
    levels = [4, 8, 16, 12, 10] if share else [4, 8, 16, 12, 10, 9]
    assert [item["level"] for item in told["measurements"]] == levels
    assert [item["trial"] for item in told["measurements"]] == list(range(len(levels)))
    first = told["measurements"][0]
    assert first["median_ttft_ms"] == pytest.approx(20)
    assert first["median_tpot_ms"] == pytest.approx(5)
    assert first["judgements"][0]["verdict"] == "met"
    assert told["goodput"] == ("ttft:50" if share else None)
    assert [item["metric"] for item in told["objective"]] == ([] if share else ["ttft", "error"])
