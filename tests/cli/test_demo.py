"""``whet demo --replay``: the recorded run, decided again from its events."""

from __future__ import annotations

from pathlib import Path

from tests.cli.stage import Whet
from tests.cli.test_stops import files_up_to
from whet.core.errors import StorageError, UsageError
from whet.core.run import Run
from whet.core.spec import load_spec
from whet.flow.demo import write_long_demo_spec


def test_the_recorded_run_is_decided_again_without_an_engine(whet: Whet, tmp_path: Path) -> None:
    shown = whet("demo", "--replay")
    assert (shown.code, shown.err) == (0, "")
    root = tmp_path / "runs" / "demo-h200"
    assert "Serve fp8+eagle3+cache with 128 requests in flight" in shown.out
    assert (root / "report.html").stat().st_size > 100_000
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.reference == "fp16+cache"
    assert decision.recommendation.result == "certified"
    assert decision.recommendation.confirmed
    assert {cell.status for cell in Run.read(root).cells} == {"complete"}


def test_a_disk_without_room_for_the_recorded_run(whet: Whet, tmp_path: Path) -> None:
    with files_up_to(300):
        said = whet("demo", "--replay").sentence(StorageError.exit_code)
    assert "is full; free some space" in said
    assert not list((tmp_path / "runs").iterdir())


def test_one_recorded_run_alone_is_shown(whet: Whet) -> None:
    assert "leave out --long" in whet("demo", "--replay", "--long").sentence(UsageError.exit_code)


def test_the_long_demo_names_what_writes_its_testbed(whet: Whet, tmp_path: Path) -> None:
    said = whet("demo", "--long").sentence(UsageError.exit_code)
    assert said.endswith("python -m lab.testbed 0.3b runs/demo-long-pair --draft 0.03b")
    assert list(tmp_path.rglob("*")) == []


def test_the_long_demo_runs_on_its_testbed(tmp_path: Path) -> None:
    testbed = tmp_path / "testbed"
    (testbed / "draft").mkdir(parents=True)
    (testbed / "draft" / "config.json").write_text("{}")
    write_long_demo_spec(tmp_path / "long.yaml", testbed)
    spec = load_spec(tmp_path / "long.yaml")
    models = (str(testbed / "target"), str(testbed / "draft"))
    assert (spec.model.target, spec.model.draft) == models
    assert spec.load.concurrency == (1, 4, 16)


def test_removed_commands_name_their_successor(whet: Whet) -> None:
    testbed = whet("demo", "testbed", "out", "--shape", "7b").sentence(UsageError.exit_code)
    assert "python -m lab.testbed 7b OUT" in testbed
    assert "then whet run" in whet("break-even", "whet.yaml").sentence(UsageError.exit_code)
