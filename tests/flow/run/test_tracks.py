"""Which visits share a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from whet.flow.run.check.preflight import prepare
from whet.flow.run.measure.context import Job
from whet.flow.run.measure.schedule import rounds_of

from tests.flow.rounds_stage import build_bench, spec_of
from whet.core.protocols import Silent
from whet.core.store import RunStore
from whet.flow.run.measure.rounds import SEARCH, Visit, plan_visits
from whet.flow.run.workers.cluster import gpus_of
from whet.flow.run.workers.tracks import Board, split_rounds


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    build_bench(monkeypatch)
    variants = {"fp16": {}, "b": {}, "c": {}, "d": {}}
    with RunStore.open(tmp_path / "run") as store:
        spec = spec_of(tmp_path, trials=4, variants=variants)
        return prepare(spec, store, Silent(), skip_infeasible=False)


def visits(job: Job, *, trials: int, title: str = "") -> list[tuple[Visit, ...]]:
    return list(plan_visits(job, rounds_of(job)[:trials], quality=True, title=title))


def words(tracks: list[list[Visit]]) -> list[str]:
    """``fp16b/cd``: the variants of a track, a slash between its rounds."""
    made = []
    for track in tracks:
        text, turn = "", track[0].turn
        for each in track:
            text += "" if each.turn == turn else "/"
            turn = each.turn
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
    search = visits(job, trials=1, title=SEARCH)
    assert words(split_rounds(search, 2, alike=False)) == ["a", "b", "c", "d"]


def test_answers_wait_for_those_of_the_baseline(job: Job) -> None:
    board = Board(job, split_rounds(visits(job, trials=1), 2, alike=True))
    (first,) = board.take(2)
    assert first.visits[0].names == ("fp16",)
    assert not list(board.take(2)), "answers are compared with the baseline's"
    board.end(first)
    taken = [track.visits[0].names for track in board.take(2)]
    assert taken == [("c",), ("b",)], "a begun track goes first"


def test_no_more_tracks_are_begun_than_there_are_workers(job: Job) -> None:
    board = Board(job, split_rounds(visits(job, trials=4), 2, alike=True)[::-1])
    assert len(list(board.take(1))) == 1
    assert not list(board.take(1))
    assert len(list(board.take(2))) == 1


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
