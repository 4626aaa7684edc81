"""``--quiet``: the path of the result alone."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from tests.scripted_server import scripted_server
from whet.demo import pair_paths

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return tmp_path / "run"


def test_a_report_a_decision_and_a_bundle_are_named(whet: Whet, root: Path) -> None:
    for words, path in (
        (("report", root), root / "report.html"),
        (("decide", root), root),
        (("deploy", root), Path("deployment")),
    ):
        said = whet(*words, "-q")
        assert (said.code, said.out) == (0, f"{path}\n"), said.err
        assert path.exists()


def test_a_saved_measurement_is_named(whet: Whet) -> None:
    with scripted_server() as server:
        words = ("--tokenizer", pair_paths()[0], "--num-prompts", 4, "--num-warmups", 0, "--osl", 4)
        said = whet("bench", server.url, *map(str, words), "--save-result", "-o", "out", "-q")
    assert (said.code, said.out) == (0, "out/bench.json\n"), said.err
