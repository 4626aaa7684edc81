"""``whet decide`` on runs that are stored in results/, whole and with a record missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cli.stage import Whet

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return tmp_path / "run"


def test_a_run_of_trials_alone_is_decided_again(whet: Whet, root: Path) -> None:
    decided = whet("decide", root)
    assert (decided.code, decided.err) == (0, "")
    assert "fp16" in decided.out


def test_a_variant_that_no_quality_check_has_seen_is_named_first(whet: Whet, root: Path) -> None:
    (root / "quality" / "awq+draft+cache.json").unlink()
    decided = whet("decide", root, "--quiet")
    assert decided.code == 0
    assert decided.err == f"! {root}: awq+draft+cache has no quality record.\n"


def test_a_report_is_printed_where_a_terminal_is_narrow_and_has_no_utf8(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from whet.cli.main import main; main()", "report", str(root)],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60", "NO_COLOR": "1"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode("ascii").splitlines()
    assert any(line.startswith("Serve draft+cache") for line in lines)
    first, last = (
        next(n for n, x in enumerate(lines) if w in x) for w in ("TTFT p95", "Serve draft")
    )
    assert last - first > 4
    assert all(len(line) <= 60 for line in lines[first:last]), "a table is as wide as the terminal"
