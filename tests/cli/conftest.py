"""The command line in this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import Said, Whet
from tests.flow.stage import FakeEngine, install
from whet.cli.main import main


@pytest.fixture(autouse=True)
def patient(lenient_client: None) -> None:
    pass


@pytest.fixture
def whet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Whet]:
    """The command line in an empty folder."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    monkeypatch.chdir(tmp_path)
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)

    def call(*words: str | Path) -> Said:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["whet", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Said(code=code, out=out, err=err)

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A scripted engine in vLLM's place."""
    engine = FakeEngine()
    install(engine, monkeypatch)
    return engine


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with a target and a draft of one tokenizer."""
    write_tiny_llama(tmp_path / "target")
    write_tiny_llama(tmp_path / "draft", seed=1)
    return tmp_path
