"""What a command imports: each takes a fraction of a second or more, and a user waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.scripted_server import scripted_server
from whet.demo import pair_paths

TARGET, DRAFT = pair_paths()
PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
HEAVY = frozenset(
    ("torch", "transformers", "pandas", "scipy", "scipy.stats", "altair", "matplotlib", "vllm")
)
NUMBERS = frozenset({"scipy"})  # scipy.special, for intervals
TOKENIZER = frozenset({"transformers"})
CHARTS = frozenset({"altair", "pandas"})  # pandas for requests.parquet
PROGRAM = """
import json, sys
from whet.cli.main import main
sys.argv[0] = "whet"
try:
    main()
finally:
    open({place!r}, "w").write(json.dumps(sorted(sys.modules)))
"""


def modules(folder: Path, *words: object) -> set[str]:
    """The modules that a command has imported at its end, in a process of its own."""
    place = folder / "modules.json"
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(place=str(place)), *map(str, words)],
        cwd=folder,
        env={**os.environ, "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return set(json.loads(place.read_text()))


def stored_run(folder: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    return folder / "run"


def heavy(folder: Path, *words: object) -> set[str]:
    return modules(folder, *words) & HEAVY


@pytest.mark.parametrize(
    "words",
    [("--version",), ("--help",), *((name, "--help") for name in ("bench", "decide", "check"))],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(tmp_path: Path, words: Sequence[str]) -> None:
    assert not modules(tmp_path, *words) & {*HEAVY, "numpy", "jinja2", "tokenizers"}


@pytest.mark.parametrize("form", ["ids", "text", "chat"])
def test_a_bench_of_token_ids_needs_no_tokenizer(tmp_path: Path, form: str) -> None:
    with scripted_server() as server:
        imported = modules(
            tmp_path, "bench", server.url, "--tokenizer", TARGET, "--form", form,
            *("--num-prompts", 4, "--concurrency", 2, "--isl", 24, "--osl", 2),
        )  # fmt: skip
    assert imported & HEAVY <= (NUMBERS if form == "ids" else NUMBERS | TOKENIZER)
    assert "whet.core.spec" not in imported  # no whet.yaml is read


def test_a_decision_draws_no_charts(tmp_path: Path) -> None:
    assert heavy(tmp_path, "decide", stored_run(tmp_path)) <= NUMBERS


def test_a_report_imports_what_draws_its_charts(tmp_path: Path) -> None:
    assert heavy(tmp_path, "report", stored_run(tmp_path)) <= NUMBERS | CHARTS


def test_a_check_reads_no_weights(tmp_path: Path) -> None:
    modules(tmp_path, "init", "whet.yaml", "--model", TARGET, "--draft", DRAFT)
    trial = {"torch", "scipy"}  # the layers that a recipe measures are tried
    assert heavy(tmp_path, "check", "whet.yaml", "--device", "H100 SXM") <= TOKENIZER | trial
    spec = yaml.safe_load((tmp_path / "whet.yaml").read_text())
    spec |= {"variants": {"fp16": {}}, "recipes": {}}
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(spec))
    assert heavy(tmp_path, "check", "plain.yaml", "--device", "H100 SXM") <= TOKENIZER
