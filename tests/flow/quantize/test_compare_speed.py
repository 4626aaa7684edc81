"""Speed and serving memory of every scheme: what is sent, what is stored, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.quantize.compare_stage import request, run, write_files
from tests.flow.stage import FakeEngine, FakeServer
from whet.core.errors import UsageError
from whet.core.protocols import Server
from whet.core.records import ResolvedEngine, SchemeOnServer, TrialRecord, Variant, decode
from whet.core.spec import EngineSpec
from whet.flow.quantize import speed
from whet.flow.quantize.compare_job import SETTINGS


class WatchedEngine(FakeEngine):
    """A scripted engine that keeps what it was asked for and was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.args: dict[str, dict[str, Any]] = {}
        self.sent: dict[str, list[dict[str, Any]]] = {}

    def resolve(self, variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        self.args[variant.name] = dict(variant.engine_args)
        return super().resolve(variant, spec)

    @contextmanager
    def _serve(self, resolved: ResolvedEngine, log: Path) -> Iterator[Server]:
        with super()._serve(resolved, log) as server:
            yield server
            assert isinstance(server, FakeServer)
            self.sent[resolved.variant.name] = server.scripted.requests


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> WatchedEngine:
    fake = WatchedEngine()
    monkeypatch.setattr("whet.flow.quantize.serve_check.get_engine", lambda _name: fake)
    return fake


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("speed"))


def timed(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The requests of the load: those with its output length."""
    return [body for body in bodies if body["max_tokens"] == 128]


def test_every_row_has_its_speed_at_each_load_and_its_memory(
    files: Path, tmp_path: Path, engine: WatchedEngine
) -> None:
    table = run(request(files, "w8a8", loads=(1, 4)), tmp_path / "out")
    for row in table.rows:
        assert row.served is not None, row.not_served
        assert row.served.memory_bytes == 10**9
        assert [each.load for each in row.served.speeds] == [1, 4]
        one, four = row.served.speeds
        assert one.output_tps is not None, one.reason
        assert four.output_tps is not None, four.reason
        assert 0 < one.output_tps < 1020, "a token each millisecond, the first at once"
        assert four.output_tps > 1.5 * one.output_tps
        assert one.window_s is not None
        assert row.served.tasks, "beside the tasks"
    # A warm-up as large as the load, then 8 requests or 5 a slot: 1 + 8 + 4 + 20.
    assert [len(timed(engine.sent[name])) for name in ("16bit", "w8a8")] == [33, 33]
    prompts = [[body["prompt"] for body in timed(engine.sent[name])] for name in ("16bit", "w8a8")]
    assert sorted(prompts[0]) == sorted(prompts[1]), "every scheme answers the same requests"
    assert len({tuple(ids) for ids in prompts[0]}) == 33, "no prompt comes twice"


def test_the_engine_runs_as_in_use_and_has_room_for_the_requests(
    files: Path, tmp_path: Path, engine: WatchedEngine
) -> None:
    run(request(files, "w8a8", loads=(1,)), tmp_path / "out")
    for name in ("16bit", "w8a8"):
        assert "enforce_eager" not in engine.args[name]
        longest = max(len(body["prompt"]) + 128 for body in timed(engine.sent[name]))
        assert longest <= engine.args[name]["max_model_len"] <= 512


def test_a_trial_that_fails_leaves_a_reason_and_the_tasks(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    run_trial = speed.run_trial

    def disturbed(*args: Any, **more: Any) -> TrialRecord:
        record = run_trial(*args, **more)
        tries.append(record.batch_size)
        if record.batch_size == 2 or len(tries) == 1:
            health = replace(record.health, valid=False, reason="other work took the cores")
            return replace(record, health=health)
        return record

    monkeypatch.setattr(speed, "run_trial", disturbed)
    source = run(request(files, "w8a8", loads=(1, 2)), tmp_path / "out").rows[0].served
    assert source is not None
    assert tries[:4] == [1, 1, 2, 2], "a trial without a figure is repeated once"
    assert source.speeds[0].output_tps is not None
    assert source.speeds[1].output_tps is None
    assert "other work took the cores" in str(source.speeds[1].reason)
    assert source.tasks


def test_a_context_without_room_for_a_prompt_is_a_reason(
    files: Path, tmp_path: Path, engine: WatchedEngine
) -> None:
    write_tiny_llama(tmp_path / "short", max_position_embeddings=64)
    asked = request(files, "w8a8", loads=(1,), model=str(tmp_path / "short"))
    source = run(asked, tmp_path / "out").rows[0].served
    assert source is not None
    assert source.memory_bytes is None
    assert source.speeds[0].output_tps is None
    assert "leaves no room for a user turn" in str(source.speeds[0].reason)
    assert engine.args["16bit"]["enforce_eager"] is True, "no speed is measured"


def test_other_loads_never_share_a_table(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(request(files, "w8a8", tasks=False, loads=(1, 8)), out)
    table = run(request(files, "w8a8", loads=(1,)), out)
    assert table.rows[1].served is not None, "without a server the loads decide nothing"
    for loads in ((1, 2), ()):
        with pytest.raises(UsageError, match="with other values of --loads or --no-speed; restore"):
            run(request(files, "w8a8", loads=loads), out)
    again = run(request(files, "w8a8", "w8a16", tasks=False), out)
    assert again.rows[1].served == table.rows[1].served


def test_a_comparison_without_speed_is_read_as_before(
    files: Path, tmp_path: Path, engine: WatchedEngine
) -> None:
    out = tmp_path / "out"
    table = run(request(files, "w8a8"), out)
    for part in ("served/w8a8.json", f"{SETTINGS}/{SETTINGS}.json"):
        stored = json.loads((out / part).read_text())
        data = stored.get("data", stored)
        removed = [data.pop(key, "?") for key in ("memory_bytes", "speeds", "loads")]
        assert removed in ([None, [], "?"], ["?", "?", []])
        (out / part).write_text(json.dumps(stored))
        if part.startswith("served"):
            old = decode(SchemeOnServer, data)
            assert (old.memory_bytes, old.speeds) == (None, ())
    assert run(request(files, "w8a8"), out).rows == table.rows
    assert engine.started == ["16bit", "w8a8"]
