"""``whet demo --replay``: the recorded run, decided again from its events."""

from __future__ import annotations

from pathlib import Path

from tests.cli.stage import Whet
from tests.cli.test_stops import files_up_to
from whet.core.errors import StorageError, UsageError
from whet.core.run import Run


def test_the_recorded_run_is_decided_again_without_an_engine(whet: Whet, tmp_path: Path) -> None:
    shown = whet("demo", "--replay")
    assert (shown.code, shown.err) == (0, "")
    root = tmp_path / "runs" / "demo-h200"
    assert "Serve fp8+eagle3+cache at 128 requests in flight" in shown.out
    assert (root / "report.html").stat().st_size > 100_000
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.reference == "fp16+cache"
    assert decision.recommendation.meets == "yes"
    assert decision.recommendation.cheaper
    assert decision.recommendation.measured_again
    assert {cell.status for cell in Run.read(root).cells} == {"complete"}


def test_a_disk_without_room_for_the_recorded_run(whet: Whet, tmp_path: Path) -> None:
    with files_up_to(300):
        said = whet("demo", "--replay").sentence(StorageError.exit_code)
    assert "is full; free some space" in said
    assert not list((tmp_path / "runs").iterdir())


def test_removed_commands_name_their_successor(whet: Whet) -> None:
    testbed = whet("demo", "testbed", "out", "--shape", "7b").sentence(UsageError.exit_code)
    assert "python -m lab.testbed 7b OUT" in testbed
    assert "then whet run" in whet("break-even", "whet.yaml").sentence(UsageError.exit_code)
    budget = whet("run", "--budget", "30m").sentence(UsageError.exit_code)
    assert "search: {time: 30m}" in budget
