"""``whet decide`` on runs that are stored in results/, whole and with a record missing."""

from __future__ import annotations

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
    (root / "quality" / "awq+spec+cache.json").unlink()
    decided = whet("decide", root, "--quiet")
    assert decided.code == 0
    assert decided.err == f"! {root}: awq+spec+cache has no quality record.\n"
