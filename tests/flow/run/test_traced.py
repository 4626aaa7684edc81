"""A log as the load of a run: its own times and lengths, and what no load can be made of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import Bench, build_bench, spec_of, story
from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.units import NS_PER_S
from whet.load import TrialPlan
from whet.report.document import Facts, Folded, Table
from whet.report.run.cells import build as cells_section
from whet.report.run.decision import build as decision_section
from whet.report.run.matrix import build as matrix_section

PAIR: dict[str, Any] = {"fp16": {}, "b": {"args": {"seed": 1}}}
ACCEPTED = {"accept_unproved": ["speculation", "settings", "prefix_cache"]}
TIMES_S = (0.0, 0.5, 0.6, 2.0, 2.1, 3.5)
LENGTHS = ((20, 3), (40, 5), (10, 2), (30, 4), (20, 6), (25, 7))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = build_bench(monkeypatch)
    made.passes = True
    return made


def write_log(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def mooncake(folder: Path, repeat: int = 1) -> Path:
    """Six requests in four seconds, ``repeat`` times one after the other."""
    rows = [
        (at + 4 * turn, lengths)
        for turn in range(repeat)
        for at, lengths in zip(TIMES_S, LENGTHS, strict=True)
    ]
    return write_log(
        folder / "log.jsonl",
        (
            {"timestamp": 1000 * at, "input_length": i, "output_length": o, "hash_ids": []}
            for at, (i, o) in rows
        ),
    )


def traced(folder: Path, log: Path, **load: Any) -> Spec:
    own = {"trace": str(log), "seconds": 4, "min_requests": 2, "trials": 2, "warmup_requests": 2}
    return spec_of(folder, load={**own, **load}, variants=PAIR, evidence=ACCEPTED)


def lengths_of(plan: TrialPlan) -> tuple[tuple[int, int], ...]:
    return tuple((len(r.prompt_token_ids), r.max_tokens) for r in plan.workload.requests)


def test_the_logs_own_times_and_lengths_are_sent_to_every_variant(
    bench: Bench, tmp_path: Path
) -> None:
    """Of a log of twelve seconds its first four; prompts are drawn for each trial anew."""
    story(bench, traced(tmp_path, mooncake(tmp_path, repeat=3), confirm=False), tmp_path / "run")
    assert len(bench.plans) == 4
    assert {plan.loop for plan in bench.plans} == {"open"}
    assert {plan.offsets_ns for plan in bench.plans} == {tuple(int(t * NS_PER_S) for t in TIMES_S)}
    assert {lengths_of(plan) for plan in bench.plans} == {LENGTHS}
    traffic = {(plan.trial, plan.workload.facts.sha256) for plan in bench.plans}
    assert len(traffic) == len({sha for _, sha in traffic}) == 2
    assert {len(plan.warmup) for plan in bench.plans} == {2}


def test_the_servers_are_those_that_the_logs_own_rate_needs(bench: Bench, tmp_path: Path) -> None:
    """Five gaps in 3.5 s are 1.43 requests a second: one server, or four for 5 a second."""
    log = mooncake(tmp_path)
    for demand, name in ((None, "own"), (5.0, "more")):
        load = {} if demand is None else {"demand_rps": demand}
        story(bench, traced(tmp_path, log, confirm=False, **load), tmp_path / name)
        run = Run.read(tmp_path / name)
        assert run.loads == (Load.rate(1.43),)
        assert run.decision is not None
        assert run.decision.recommendation is not None
        fleet = run.decision.recommendation.fleet
        assert fleet is not None
        assert fleet.demand_rps == (demand or 1.43)
        assert fleet.servers == (4 if demand else 1)
        assert fleet.usd_per_month == 730 * fleet.servers
        section = decision_section(run)
        [facts] = [node for node in section.nodes if isinstance(node, Facts)]
        shown = {fact.name: (fact.value.text, fact.note) for fact in facts.items}
        servers, note = shown["Servers"]
        assert servers == str(fleet.servers)
        assert note.startswith(f"for {demand or 1.43:g} req/s")
        assert shown["Dollars a month"][0] == f"${fleet.usd_per_month:,.0f}"
        assert f"${fleet.usd_per_month:,.0f} a month" in str(matrix_section(run))


def test_the_confirmation_plays_the_same_times_with_new_prompts(
    bench: Bench, tmp_path: Path
) -> None:
    story(bench, traced(tmp_path, mooncake(tmp_path)), tmp_path / "run")
    again = [plan for plan in bench.plans if plan.trial >= 2]
    assert {(plan.variant, plan.trial) for plan in again} == {
        (name, trial) for name in PAIR for trial in (2, 3)
    }
    assert {plan.offsets_ns for plan in again} == {bench.plans[0].offsets_ns}
    assert len({plan.workload.facts.sha256 for plan in bench.plans}) == 4


def test_a_search_plays_the_log_at_other_speeds_while_it_lasts(
    bench: Bench, tmp_path: Path
) -> None:
    """A server takes 16 requests in 4 s, which are 4 a second; the log starts at 1.43."""
    bench.capacity = {"fp16": 16, "b": 16}
    log = mooncake(tmp_path, repeat=10)
    story(bench, traced(tmp_path, log, find="max_rate", confirm=False), tmp_path / "run")
    run = Run.read(tmp_path / "run")
    search = run.rate_searches["fp16"]
    assert search.tried[0].rate.value == 1.43
    assert search.points[-1].value == pytest.approx(4, rel=0.1)
    measured = [plan for plan in bench.plans[2 * len(search.tried) :] if plan.variant == "fp16"]
    for plan in measured:
        count = len(plan.offsets_ns)
        rate = (count - 1) / (plan.offsets_ns[-1] / NS_PER_S)
        assert min(abs(rate - point.value) for point in search.points) < 1e-6
        assert lengths_of(plan) == (LENGTHS * 10)[:count]
    assert len({plan.workload.facts.sha256 for plan in measured}) == len(measured)
    section = cells_section(run)
    assert section is not None
    [folded] = [node for node in section.nodes if isinstance(node, Folded)]
    [table] = [node for node in folded.nodes if isinstance(node, Table)]
    assert table.columns[1].name == "load"
    assert [row.cells[1].text for row in table.rows] == [str(each) for each in search.points] * 2
    assert run.decision is not None
    assert run.decision.recommendation is not None
    fleet = run.decision.recommendation.fleet
    assert fleet is not None
    assert fleet.demand_rps == 1.43


def test_a_search_ends_where_the_log_is_over_before_the_window(
    bench: Bench, tmp_path: Path
) -> None:
    """Twelve requests for windows of 4 s are three a second, and not one above is tried."""
    log = mooncake(tmp_path, repeat=2)
    story(bench, traced(tmp_path, log, find="max_rate", confirm=False), tmp_path / "run")
    search = Run.read(tmp_path / "run").rate_searches["b"]
    assert [each.rate.value for each in search.tried] == [1.43, 2.86, 3.0]
    assert [point.value for point in search.points] == [2.4, 2.7, 3.0]


def test_prompts_of_a_log_find_nothing_of_an_earlier_play_in_a_cache(
    bench: Bench, tmp_path: Path
) -> None:
    """All plays on one server begin with texts of their own; within a play the log's start is."""
    shared = "you are a clerk of few words and much patience"
    lines = [{"timestamp": at, "prompt": f"{shared} {at}", "max_tokens": 4} for at in TIMES_S]
    log = write_log(tmp_path / "log.jsonl", lines)
    story(bench, traced(tmp_path, log, order="blocks", confirm=False), tmp_path / "run")
    prompts = [[call.prompt or "" for call in plan.calls or ()] for plan in bench.plans]
    assert {len(each) for each in prompts} == {6}
    for each in prompts:
        assert len({text.split(shared)[0] for text in each}) == 1
    assert {each[0].split(shared)[0] for each in prompts} == {"[r1.43-t0] ", "[r1.43-t1] "}


def test_tools_are_sent_as_a_part_of_the_prompt(bench: Bench, tmp_path: Path) -> None:
    """A vLLM without a tool parser refuses a chat with tools."""
    tool = {"type": "function", "function": {"name": "find", "parameters": {}}}
    lines = [
        {
            "timestamp": at,
            "messages": [{"role": "user", "content": f"question {at}"}],
            "tools": [tool],
            "response_format": {"type": "json_object"},
            "max_tokens": 4,
        }
        for at in TIMES_S
    ]
    log = write_log(tmp_path / "log.jsonl", lines)
    story(bench, traced(tmp_path, log, confirm=False), tmp_path / "run")
    for plan in bench.plans:
        for call, request in zip(plan.calls or (), plan.workload.requests, strict=True):
            assert call.prompt_token_ids == request.prompt_token_ids
            assert not call.extra


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0000000,20,3
2023-11-16 18:15:46.5000000,40,5
2023-11-16 18:15:48.0000000,10,2
2023-11-16 18:15:49.7500000,30,4
"""


def test_the_azure_traces_are_read(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "azure.csv"
    log.write_text(AZURE)
    story(bench, traced(tmp_path, log, confirm=False), tmp_path / "run")
    assert {lengths_of(plan) for plan in bench.plans} == {((20, 3), (40, 5), (10, 2), (30, 4))}
    wanted = tuple(int(at * NS_PER_S) for at in (0, 0.5, 2, 3.75))
    assert {plan.offsets_ns for plan in bench.plans} == {wanted}


def openai(*times: float | None, tokens: int | None = 4) -> list[dict[str, Any]]:
    own = {} if tokens is None else {"max_tokens": tokens}
    return [
        {"prompt": "where is it", **own, **({} if at is None else {"timestamp": at})}
        for at in times
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (openai(None, None), 'has no times; add a "timestamp" to every line'),
        (openai(1.0), "has one request only; give a log of at least 4 s"),
        (openai(1.0, 2.0), "covers 1 s and load.seconds is 4: lower load.seconds or give a longer"),
        (openai(0, 9), "has 1 request in its first 4 s and load.min_requests is 2: raise load.sec"),
        (openai(0, 2, 5, tokens=0), "has no request to send (3 failed rows); give a file with"),
        (openai(0, 2, 5, tokens=None), "does not say how long the answer of 3 requests was; add"),
        (
            openai(0, 2, 5, tokens=900),
            "are longer than max_model_len 512 (the longest has 911 tokens",
        ),
    ],
    ids=["no times", "one", "short", "thin", "empty answers", "no lengths", "too long"],
)
def test_a_log_that_is_no_load_is_refused_before_a_server_starts(
    bench: Bench, tmp_path: Path, lines: list[dict[str, Any]], message: str
) -> None:
    log = write_log(tmp_path / "log.jsonl", lines)
    with pytest.raises(UsageError) as caught:
        story(bench, traced(tmp_path, log), tmp_path / "run")
    assert message in str(caught.value)
    assert "log.jsonl" in str(caught.value)
    assert bench.engine.started == []


def test_a_log_that_does_not_exist_is_named(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"load\.trace: no file at .*gone\.jsonl; correct"):
        story(bench, traced(tmp_path, tmp_path / "gone.jsonl"), tmp_path / "run")
    assert bench.engine.started == []


@pytest.mark.parametrize("other", [{"concurrency": [2]}, {"rates": [2.0]}], ids=str)
def test_a_log_is_a_load_alone(tmp_path: Path, other: dict[str, Any]) -> None:
    log = mooncake(tmp_path)
    with pytest.raises(UsageError, match=rf"load has {next(iter(other))} and trace; give one of"):
        traced(tmp_path, log, **other)
