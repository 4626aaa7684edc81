"""A full disk and a request to stop: what was measured is kept, and a resume goes on."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.stage import Stub, Whet, stopped, write_whole_spec
from tests.flow.stage import FakeEngine
from whet.cli.main import app
from whet.client import run_async
from whet.core.errors import Interrupted, MeasurementError, NothingQualifiesError, StorageError
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.store import RunStore
from whet.data import write_inputs

STORAGE = StorageError.exit_code
ONE_CELL = {"concurrency": [1], "trials": 1, "min_requests": 4, "warmup_requests": 0}


def measured(root: Path) -> dict[str, bytes]:
    """Every finished trial as its file has it."""
    return {path.name: path.read_bytes() for path in (root / "trials").iterdir()}


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_from_the_start(
    whet: Whet, scripted: FakeEngine, tmp_path: Path
) -> None:
    write_whole_spec(tmp_path)
    with files_up_to(300):
        said = whet("run").sentence(STORAGE)
    assert "is full; free some space and repeat the command (a run: with --resume" in said
    assert scripted.started == []


def test_a_disk_that_fills_up_while_the_built_in_inputs_are_written(
    whet: Whet, scripted: FakeEngine, tmp_path: Path
) -> None:
    write_whole_spec(tmp_path, quality={"max_documents": 12})
    with files_up_to(1_000_000):
        said = whet("run").sentence(STORAGE)
    assert "is full; free some space and repeat the command (a run: with --resume" in said
    assert not list((tmp_path / "runs").rglob("inputs/*"))
    assert scripted.started == []


def test_a_disk_that_fills_up_in_the_middle(
    whet: Whet, scripted: FakeEngine, tmp_path: Path
) -> None:
    write_whole_spec(tmp_path)
    root = tmp_path / "runs" / "tiny"
    write_inputs(root / "inputs")
    with files_up_to(4500):
        said = whet("run", "--resume").sentence(STORAGE)
    assert "is full; free some space and repeat the command (a run: with --resume" in said
    kept = measured(root)
    assert kept, "the trials before the disk was full are there"
    assert not list(root.rglob("*.tmp"))
    assert whet("run", "--resume").code == NothingQualifiesError.exit_code
    after = measured(root)
    assert {name: after[name] for name in kept} == kept, "and are not measured again"
    assert len(after) == 8


def test_a_disk_too_full_for_a_checkpoint(whet: Whet, pair: Path) -> None:
    text = json.dumps({"text": "the parcel arrived on friday " * 40})
    (pair / "text.jsonl").write_text(text)
    before = set(pair.iterdir())
    words = ["--method", "rtn", "--samples", "2", "--calibration", "text.jsonl"]
    with files_up_to(20_000):
        assert "free some space" in whet("quantize", "target", "out", *words).sentence(STORAGE)
    assert set(pair.iterdir()) == before


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=FULL),
        pytest.param(signal.SIGQUIT, marks=FULL),
    ],
)
def test_a_signal_between_two_variants_keeps_the_first(
    whet: Whet, scripted: FakeEngine, tmp_path: Path, stub: Stub, number: signal.Signals
) -> None:
    spec, root = write_whole_spec(tmp_path, load=ONE_CELL), tmp_path / "runs" / "tiny"
    process = stub("--hang-at", "other", "run", spec, "-o", tmp_path / "runs")
    said = stopped(process, number, at="serving other").stop()
    assert said == f"Stopped. Resume: whet run {spec} -o {tmp_path / 'runs'} --resume"
    assert {trial.variant for trial in RunStore.read(root).all("trials", TrialRecord)} == {"fp16"}
    assert "fp16,1," in (root / "results.csv").read_text()
    assert (root / "report.html").exists()
    undecided = whet("decide", root)
    assert undecided.code == MeasurementError.exit_code
    assert undecided.err.startswith(f"! {root}: Not measured yet: other.\n")
    assert "no decision, because a run is unfinished" in undecided.err
    command = f"whet run {spec} --output-dir={tmp_path / 'runs'} --resume"
    assert f"finish it with {command}, or " in undecided.err
    assert Run.read(root).missing[-1] == f"No decision was made; go on with {command}."
    whet("run", "--resume")
    assert scripted.started == ["other"]


def test_a_stop_in_the_middle_of_a_trial(tmp_path: Path, stub: Stub) -> None:
    spec = write_whole_spec(tmp_path, load=ONE_CELL)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # All at once: most of the time is imports.
    processes = {
        number: stub("--slow", "run", spec, "-o", tmp_path / number.name) for number in numbers
    }
    for number, process in processes.items():
        assert stopped(process, number, at="answering").stop().endswith(" --resume")
        store = RunStore.read(tmp_path / number.name / "tiny")
        assert [trial.status for trial in store.all("trials", TrialRecord)] == ["interrupted"]
        assert not store.done("trials", "fp16--b001-t0"), "so a resume measures it again"


def test_ctrl_c_outside_a_trial(whet: Whet, tmp_path: Path, stub: Stub) -> None:
    spec = write_whole_spec(tmp_path, load=ONE_CELL)
    process = stub("--hang-at", "fp16", "run", spec, "-o", tmp_path)
    said = stopped(process, signal.SIGINT, at="serving fp16").stop()
    assert said == f"Stopped. Resume: whet run {spec} -o {tmp_path} --resume"
    assert whet("decide", tmp_path / "tiny").code == MeasurementError.exit_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", ["run", "demo", "quantize", "bench", "ci init", "watch"])
def test_a_stop_offers_only_what_the_command_has(
    whet: Whet, monkeypatch: pytest.MonkeyPatch, words: str, number: signal.Signals
) -> None:
    monkeypatch.setattr("whet.cli.main.app", lambda *_, **__: os.kill(os.getpid(), number))
    said = whet(*words.split(), "A B").stop()
    assert said.startswith("Stopped. ")
    options = options_of(words)
    offers_resume = f"Resume: whet {words} 'A B' --resume" in said
    assert ("--resume" in said) == offers_resume == ("--resume" in options)


def options_of(words: str) -> set[str]:
    """The options of a command, a name or a group and its command."""
    command = app
    for word in words.split():
        command = command[word]
    return {
        name
        for argument in command.assemble_argument_collection()
        for name in argument.names
        if name.startswith("--")
    }


def test_a_stopped_demo_is_gone_on_with_by_its_own_command(
    whet: Whet, tmp_path: Path, stub: Stub
) -> None:
    process = stub("--hang-at", "default", "demo", "-o", tmp_path, "--name", "mine")
    said = stopped(process, signal.SIGINT, at="serving default").stop()
    assert said == f"Stopped. Resume: whet demo -o {tmp_path} --name mine --resume"
    undecided = whet("decide", tmp_path / "mine").err
    assert f"whet demo --output-dir={tmp_path} --name=mine --resume" in undecided


def test_every_option_of_a_run_is_in_the_command_that_goes_on_with_it(
    whet: Whet, scripted: FakeEngine, tmp_path: Path
) -> None:
    write_whole_spec(tmp_path, load=ONE_CELL).rename(tmp_path / "a b.yaml")
    change = ("--set", "load.trials=1", "--set", "quality.max_tasks=1")
    assert whet("run", "a b.yaml", "--name", "mine", *change, "--skip-infeasible").code
    root = tmp_path / "runs" / "mine"
    (root / "decision.json").unlink()
    (goes_on,) = [line for line in whet("report", root).out.splitlines() if "Go on" in line]
    assert goes_on == (
        "Go on: whet run 'a b.yaml' --set=load.trials=1 --set=quality.max_tasks=1 --name=mine "
        "--skip-infeasible --resume"
    )
    words = shlex.split(goes_on.removeprefix("Go on: whet"))
    assert whet(*words).code == NothingQualifiesError.exit_code
    assert scripted.started == ["fp16", "other"], "nothing is measured again"


def test_a_stop_before_a_resumed_run_names_the_flag_once(
    whet: Whet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.cli.main.app", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    assert whet("run", "--resume", "a.yaml").stop() == "Stopped. Resume: whet run a.yaml --resume"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_outside_the_trials_is_heard_in_the_event_loop(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    def stop(_number: int, _frame: object) -> None:
        raise Interrupted("stopped")

    signal.signal(number, stop)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    try:
        timer.start()
        with pytest.raises(Interrupted, match="stopped"):
            run_async(asyncio.sleep(60))
        assert signal.getsignal(number) is stop
    finally:
        timer.cancel()
        signal.signal(number, before)
