"""A request to stop and a full disk: what is said; ``tests/faults`` has every point of a run."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from whet.cli.main import app
from whet.client import run_async
from whet.core.errors import Interrupted, StorageError

STORAGE = StorageError.exit_code


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_too_full_for_a_checkpoint(whet: Whet, pair: Path) -> None:
    text = json.dumps({"text": "the parcel arrived on friday " * 40})
    (pair / "text.jsonl").write_text(text)
    before = set(pair.iterdir())
    words = ["--method", "rtn", "--samples", "2", "--calibration", "text.jsonl"]
    with files_up_to(20_000):
        assert "free some space" in whet("quantize", "target", "out", *words).sentence(STORAGE)
    assert set(pair.iterdir()) == before


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
