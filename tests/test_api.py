"""The commands as functions: the page's examples, keywords, results, and what a notebook shows."""

from __future__ import annotations

import asyncio
import json
import os
import pydoc
import re
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import whet
from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import write_whole_spec
from tests.flow.stage import FakeEngine, install
from tests.scripted_server import ScriptedServer, scripted_server
from whet.client import run_async
from whet.core.errors import MeasurementError, StorageError, UsageError
from whet.demo import pair_paths

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "python.md"
PUBLISHED = REPOSITORY / "results" / "cpu-demo" / "run.tar.xz"
FUNCTIONS = [
    *("bench", "check", "decide", "deploy", "load", "plan", "prompts", "quality"),
    *("quantize", "report", "run"),
]
FAST = "load.trials=1 load.min_requests=4 load.requests_per_slot=2 workload.max_output_tokens=16"
SHORT = {"num_prompts": 8, "num_warmups": 0, "osl": 4, "tokenizer": pair_paths()[0]}


@pytest.fixture(autouse=True)
def patient(lenient_client: None) -> None:
    pass


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was published."""
    folder = tmp_path_factory.mktemp("runs")
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    return folder / "run"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(ttft_s=0.01, gap_s=0.001) as server:
        yield server


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec that a scripted engine ends in a second or two."""
    monkeypatch.chdir(tmp_path)
    install(FakeEngine(), monkeypatch)
    write_tiny_llama(tmp_path / "target")
    return write_whole_spec(tmp_path)


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Path, server: ScriptedServer
) -> None:
    monkeypatch.chdir(tmp_path)
    install(FakeEngine(), monkeypatch)
    monkeypatch.setenv("WHET_BENCH_TOKENIZER", str(pair_paths()[0]))
    monkeypatch.setenv("WHET_BENCH_NUM_WARMUPS", "0")
    monkeypatch.setenv("WHET_RUN_SET", FAST)
    (tmp_path / "model").symlink_to(pair_paths()[0])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo-h200").symlink_to(recorded)
    text = PAGE.read_text().replace("http://localhost:8000", server.url)
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert len(examples) == 7
    assert (tmp_path / "runs" / "nightly" / "report.html").exists()
    assert (tmp_path / "model-fp8" / "config.json").exists()
    assert (tmp_path / "deployment" / "compose.yaml").exists()


def test_the_tab_key_lists_the_functions() -> None:
    assert dir(whet) == FUNCTIONS


def test_a_package_of_the_same_name_does_not_hide_a_function() -> None:
    code = (
        "import whet, whet.load.trial, whet.deploy.render, whet.report.text, whet.prompts, "
        "whet.quality\n"
        "names = ('load', 'deploy', 'report', 'prompts', 'quality')\n"
        "print([getattr(whet, name).__name__ for name in names if callable(getattr(whet, name))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['load', 'deploy', 'report', 'prompts', 'quality']"


def test_importing_whet_imports_nothing_heavy() -> None:
    code = "import sys, whet; print(sorted({'numpy', 'rich', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sharpen'"):
        _ = whet.sharpen  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_help_text_fits_a_screen(name: str) -> None:
    function = getattr(whet, name)
    assert len(textwrap.wrap(f"{name}{signature(function)}", 80)) <= 10
    lines = pydoc.plain(pydoc.render_doc(function)).splitlines()
    assert len(lines) <= 48
    assert max(map(len, (function.__doc__ or "").splitlines())) <= 100
    assert "Raises" in function.__doc__ or "exit code" in function.__doc__


def test_the_figures_are_those_that_are_printed(server: ScriptedServer) -> None:
    result = whet.bench(server.url, concurrency=2, progress=False, **SHORT)
    (row,) = re.findall(r"^TTFT +(\S+).*?(\S+)\?? +(\S+)\?? +(\S+)\?? *$", result.text, re.M)
    mean, p90, p95, p99 = (float(each.rstrip("?")) for each in row)
    ttft = result.ttft
    shown = [round(each, 2) for each in (ttft.mean, ttft.p90, ttft.p95, ttft.p99)]
    assert shown == [mean, p90, p95, p99]
    assert f"{result.tokens_per_s:.4g}" in result.text
    assert result.tpot.p50 < ttft.p50
    assert repr(result) == "<8 of 8 requests answered>"


def test_loads_are_rows_of_one_table(server: ScriptedServer) -> None:
    frames = [
        whet.bench(server.url, concurrency=n, progress=False, **SHORT).to_frame() for n in (1, 2)
    ]
    table = pd.concat(frames)
    assert table.concurrency.tolist() == [1, 2]
    assert (table.ttft_p95 > 0).all()


def test_a_notebook_has_a_loop_that_runs(server: ScriptedServer) -> None:
    async def cell() -> Any:
        return whet.bench(server.url, progress=False, **SHORT)

    assert asyncio.run(cell()).ttft.p95 > 0


def test_ctrl_c_in_a_notebook_stops_what_runs() -> None:
    cancelled: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, interrupt)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    def interrupt() -> None:
        os.kill(os.getpid(), 2)

    async def cell() -> None:
        run_async(endless())

    loop = asyncio.new_event_loop()  # without asyncio.run, which handles the signal itself
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert cancelled == [True]


def test_a_key_is_not_that_of_the_next_call() -> None:
    with scripted_server(key="secret") as server:
        whet.bench(server.url, api_key="secret", progress=False, **SHORT)
    assert "OPENAI_API_KEY" not in os.environ


def test_a_dict_and_a_list_are_flags(server: ScriptedServer) -> None:
    whet.bench(
        server.url,
        header={"X-Team": "search"},
        extra_body={"top_k": 7},
        ignore_eos=False,
        progress=False,
        **SHORT,
    )
    assert server.headers["x-team"] == "search"
    assert server.requests[-1]["top_k"] == 7
    assert "ignore_eos" not in server.requests[-1] or not server.requests[-1]["ignore_eos"]


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"concurency": 4}, "whet.bench has no keyword 'concurency'; did you mean 'concurrency'?"),
        ({"concurrency": 0}, "--concurrency"),
        ({"num_prompts": "many"}, "--num-prompts"),
        ({"trace": "log.jsonl", "dataset_path": "log.jsonl"}, "are different traffic"),
    ],
)
def test_a_wrong_keyword_is_a_sentence(keywords: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(complaint)):
        whet.bench("http://127.0.0.1:1", **keywords)


def test_arguments_have_names(recorded: Path, tmp_path: Path) -> None:
    made = whet.deploy(run_dir=recorded, output_dir=tmp_path / "out")
    assert made.folder == tmp_path / "out"
    with pytest.raises(UsageError, match="RUN_DIR"):
        whet.deploy()


def test_a_dict_is_a_spec(tiny: Path) -> None:
    spec = yaml.safe_load(tiny.read_text())
    spec["model"]["target"] = "target"
    spec["engine"]["env"] = {"HF_TOKEN": "hf_secret_value"}
    run = whet.run(spec, set={"load.confirm": False}, name="mine", progress=False)
    assert run.spec.load.confirm is False
    assert run.root == Path("runs/mine")
    assert (run.root / "report.html").exists()
    stored = yaml.safe_load((run.root / "spec.yaml").read_text())
    assert stored["model"]["target"] == str((tiny.parent / "target").resolve())
    assert "hf_secret_value" not in (run.root / "spec.yaml").read_text()
    assert len(run.table()) == len(run.cells)


def test_a_spec_that_is_wrong_is_a_sentence(tiny: Path) -> None:
    with pytest.raises(UsageError, match="unknown key 'modle'; did you mean 'model'"):
        whet.check({**yaml.safe_load(tiny.read_text()), "modle": {}})
    with pytest.raises(UsageError, match=r"no spec file at other\.yaml"):
        whet.run("other.yaml")


def test_a_run_in_which_nothing_qualifies_says_why(tiny: Path) -> None:
    run = whet.run(tiny, progress=False)
    assert not run.recommendation
    assert "Nothing qualifies" in run.recommendation.summary()


def test_progress_is_printed_or_not(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whet.run(tiny, progress=True)
    assert "decide" in capsys.readouterr().out
    whet.run(tiny, progress=False, name="quiet")
    assert "decide" not in capsys.readouterr().out


def test_a_run_shows_its_verdict(recorded: Path) -> None:
    run = whet.load(recorded)
    chosen = run.recommendation
    assert chosen.variant in repr(run)
    assert chosen.variant in chosen.summary()
    assert run.decision.recommendation is chosen.record
    page = run._repr_html_()
    assert page.startswith("<div>")
    assert chosen.variant in page
    assert "<script" not in page


def test_the_table_has_the_figures_of_results_csv(recorded: Path) -> None:
    run = whet.report(recorded)
    table, stored = run.table(), pd.read_csv(recorded / "results.csv")
    assert table.configuration.tolist() == stored.config.tolist()
    for name, column in (("tokens_per_s", "tps_mean"), ("ttft_p95_ms", "ttft_p95_ms")):
        assert table[name].tolist() == pytest.approx(stored[column].tolist(), rel=1e-5)
    assert (table.standing == "recommended").sum() == 1


def test_an_unfinished_run_has_no_recommendation(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("")
    run = whet.load(tmp_path)
    assert not run.recommendation
    assert "No decision yet" in run.recommendation.summary()
    assert run.table().empty
    with pytest.raises(MeasurementError):
        whet.deploy(run)


def test_one_run_or_several_are_decided(recorded: Path) -> None:
    one = whet.decide(recorded)
    assert one.recommendation.variant == whet.load(recorded).recommendation.variant
    assert one.recommendation == whet.decide([whet.load(recorded)]).recommendation


def test_a_dict_and_a_list_are_one_text() -> None:
    target = pair_paths()[0]
    made = whet.plan(target, workload={"prompt": 256, "output": 64}, gpus=["L4", "H100 SXM"])
    assert {each.candidate.gpu for each in made.predictions} == {"L4", "H100 SXM"}
    assert "256 prompt tokens" in made.summary()


def test_a_log_is_analysed(tmp_path: Path) -> None:
    line = {"messages": [{"role": "user", "content": "where is my order? " * 20}], "max_tokens": 8}
    log = tmp_path / "log.jsonl"
    log.write_text(f"{json.dumps(line)}\n" * 2)
    result = whet.prompts(log, model=pair_paths()[0], output_dir=tmp_path, progress=False)
    assert 0.4 < result.hits.rate < 0.5
    assert repr(result).startswith("<A prefix cache finds")
    assert (tmp_path / "prompts.html").exists()


@pytest.mark.parametrize("name", ["load", "decide", "deploy", "report"])
def test_a_wrong_path_is_a_sentence(name: str) -> None:
    with pytest.raises(StorageError, match="nowhere holds no run"):
        getattr(whet, name)("nowhere")


def test_an_error_in_a_notebook_is_a_sentence() -> None:
    lines = UsageError("a flag is\nwrong", fix="leave it out")._render_traceback_()
    assert lines == ["UsageError: a flag is wrong; leave it out"]


def test_foreign_text_is_no_markup() -> None:
    from whet.api import Result

    page = Result(record=None, text="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in page
