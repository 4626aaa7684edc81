"""The commands as functions: the page's example, and a load-test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import whet
from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import write_whole_spec
from tests.flow.stage import FakeEngine, install
from tests.scripted_server import scripted_server
from whet.core.errors import UsageError
from whet.demo import pair_paths
from whet.flow.bench.options import (
    BenchOptions,
    LoadOptions,
    PromptOptions,
    ServerOptions,
    SourceOptions,
)
from whet.flow.run.options import RunOptions, SpecOptions

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeEngine(), monkeypatch)
    write_tiny_llama(tmp_path / "target")
    write_whole_spec(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    assert (tmp_path / "runs" / "nightly" / "decision.json").exists()
    assert (tmp_path / "target-fp8" / "config.json").exists()


def test_a_load_test_returns_its_trials() -> None:
    options = BenchOptions(
        server=ServerOptions(tokenizer=str(pair_paths()[0])),
        load=LoadOptions(num_prompts=4, num_warmups=0),
        prompts=PromptOptions(output_len=4),
    )
    with scripted_server() as server:
        result = whet.bench(server.url, options)
    assert [len(trial.requests) for trial in result.trials] == [4]


def test_options_that_do_not_go_together_are_refused() -> None:
    log = Path("log.jsonl")
    options = BenchOptions(source=SourceOptions(trace=log, dataset_path=log))
    with pytest.raises(UsageError, match="are different traffic"):
        whet.bench("http://127.0.0.1:1", options)


def test_importing_whet_imports_nothing_heavy() -> None:
    code = "import sys, whet; print(sorted({'numpy', 'torch', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sharpen'"):
        _ = whet.sharpen  # type: ignore[attr-defined]


def test_the_spec_is_stored_as_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeEngine(), monkeypatch)
    write_tiny_llama(tmp_path / "target")
    spec = write_whole_spec(tmp_path)
    run = whet.run(spec, change=SpecOptions(set=("load.confirm=false",)))
    assert run.spec is not None
    assert run.spec.load.confirm is False
    stored = (run.root / "spec.yaml").read_text()
    assert stored.startswith(spec.read_text().rstrip("\n"))
    assert "# changed by --set load.confirm=false\n" in stored


def test_a_run_that_is_stopped_leaves_its_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeEngine(), monkeypatch)
    write_tiny_llama(tmp_path / "target")
    spec = write_whole_spec(tmp_path)
    options = RunOptions(output_dir=tmp_path / "runs", name="a", executor="local", address="x:1")
    with pytest.raises(UsageError, match="--address"):
        whet.run(spec, options)
    assert (tmp_path / "runs" / "a" / "spec.yaml").exists()
