"""Which visits share a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flow.rounds_stage import build_bench, spec_of
from whet.core.protocols import Silent
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.measure.rounds import Session, sessions_of
from whet.flow.run.plan import RATE_SEARCH, Recorder
from whet.flow.run.search.grid import rounds_of
from whet.flow.run.workers.executor import gpus_of
from whet.flow.run.workers.messages import Job
from whet.flow.run.workers.tracks import Board, split_rounds


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    bench = build_bench(monkeypatch)
    variants = {"fp16": {}, "b": {}, "c": {}, "d": {}}
    with RunStore.open(tmp_path / "run") as store:
        spec = spec_of(tmp_path, trials=4, variants=variants)
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(spec, recorder, bench.engine, skip_infeasible=False)
    return Job(plan=plan, engines=bench.engine, recorder=recorder)


def visits(job: Job, *, trials: int, title: str = "") -> list[tuple[Session, ...]]:
    rounds = rounds_of(job.plan, Run(job.recorder.store))[:trials]
    return list(sessions_of(job.plan.spec.load, rounds, quality=True, title=title))


def words(tracks: list[list[Session]]) -> list[str]:
    """``fp16b/cd``: the variants of a track, a slash between its rounds."""
    made = []
    for track in tracks:
        text, turn = "", track[0].round
        for each in track:
            text += "" if each.round == turn else "/"
            turn = each.round
            text += each.names[0].replace("fp16", "a")
        made.append(text)
    return made


@pytest.mark.parametrize(
    ("trials", "workers", "alike", "expected"),
    [
        (4, 1, True, ["abcd/dcba", "abcd/dcba"]),
        (4, 2, True, ["abcd/dcba", "abcd/dcba"]),
        (3, 1, True, ["abcd/dcba", "abcd"]),
        (3, 2, True, ["abcd", "dcba", "ac", "bd"]),
        (3, 2, False, ["abcd", "dcba", "abcd"]),
        (2, 2, True, ["abcd", "dcba"]),
        (2, 4, True, ["ac", "bd", "db", "ca"]),
        (2, 4, False, ["abcd", "dcba"]),
        (2, 3, True, ["ac", "bd", "db", "ca"]),
    ],
)
def test_a_round_stays_on_one_device_unless_devices_are_alike(
    job: Job, trials: int, workers: int, alike: bool, expected: list[str]
) -> None:
    assert words(split_rounds(visits(job, trials=trials), workers, alike=alike)) == expected


def test_finalists_are_not_split_and_searches_are(job: Job) -> None:
    final = visits(job, trials=2, title="confirmation")
    assert words(split_rounds(final, 8, alike=True)) == ["abcd", "dcba"]
    search = visits(job, trials=1, title=RATE_SEARCH)
    assert words(split_rounds(search, 2, alike=False)) == ["a", "b", "c", "d"]


def test_answers_wait_for_those_of_the_baseline(job: Job) -> None:
    board = Board[str](job, split_rounds(visits(job, trials=1), 2, alike=True))
    first = board.take("x")
    assert first is not None
    assert first.names == ("fp16",)
    assert board.take("y") is None, "its answers are held against the baseline's"
    board.end("x")
    second = board.take("y")
    assert second is not None
    assert second.names == ("b",)


def test_a_visit_given_back_is_the_next_of_its_track_for_anyone(job: Job) -> None:
    board = Board[str](job, split_rounds(visits(job, trials=2), 2, alike=True))
    lost = board.take("x")
    assert board.give_back("x") == lost
    assert board.take("y") == lost
    assert board.give_back("nobody") is None


@pytest.mark.parametrize(
    ("args", "expected"),
    [({}, 1), ({"tensor_parallel_size": 2, "data_parallel_size": 2}, 4)],
)
def test_a_worker_has_the_gpus_of_the_largest_variant(args: dict[str, Any], expected: int) -> None:
    variants = [{}, args]
    resolved = [
        SimpleNamespace(variant=SimpleNamespace(engine_args=tuple(each.items())))
        for each in variants
    ]
    job = SimpleNamespace(device=SimpleNamespace(kind="cuda"), resolved=resolved)
    assert gpus_of(job) == expected  # type: ignore[arg-type]
    job.device.kind = "cpu"
    assert gpus_of(job) == 0  # type: ignore[arg-type]
