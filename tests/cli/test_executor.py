"""``whet run --executor ray``: what is refused, in one sentence, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.stage import Whet, write_whole_spec
from tests.flow.stage import FakeEngine
from whet.core.errors import UsageError

USAGE = UsageError.exit_code


@pytest.fixture(autouse=True)
def nothing_starts(whet: Whet, scripted: FakeEngine, tmp_path: Path) -> object:
    write_whole_spec(tmp_path)
    yield
    assert scripted.started == []


def test_without_the_package(whet: Whet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.flow.run.workers.executor.find_spec", lambda _name: None)
    said = whet("run", "--executor", "ray").sentence(USAGE)
    assert said == "--executor ray needs Ray, which is not installed: pip install ray"


def test_a_local_run_imports_no_ray() -> None:
    code = (
        "import sys, whet.cli.run.run, whet.flow.run.pipeline\n"
        "sys.exit(any(name == 'ray' or 'run.workers' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--address", "h:6379"], "--address is that of a Ray cluster; add --executor ray"),
        (
            ["--budget", "1h"],
            "whet run --budget is not supported; write search: {time: 30m} into whet.yaml",
        ),
        (["--executor", "dask"], "dask"),
    ],
)
def test_options_that_do_not_go_together(whet: Whet, words: list[str], says: str) -> None:
    assert says in whet("run", *words).sentence(USAGE)


@pytest.mark.parametrize("address", ["head", "ray://h:10001", "h:", ":6379", "h:port"])
def test_an_address_that_is_none(whet: Whet, address: str) -> None:
    pytest.importorskip("ray")
    said = whet("run", "--executor", "ray", "--address", address).sentence(USAGE)
    assert said == f"--address {address}: write HOST:PORT of the cluster's head"


def test_an_address_where_nothing_answers(whet: Whet) -> None:
    pytest.importorskip("ray")
    said = whet("run", "--executor", "ray", "--address", "127.0.0.1:1").sentence(USAGE)
    assert said.startswith("nothing answers at --address 127.0.0.1:1; start the head there with")


def test_no_cluster_on_this_machine(whet: Whet, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:  # a cluster of another test may run on this machine
        raise ConnectionError("Could not find any running Ray instance.")

    pytest.importorskip("ray")
    monkeypatch.setattr("ray.init", init)
    said = whet("run", "--executor", "ray").sentence(USAGE)
    assert said.startswith("cannot join the Ray cluster of this machine (Could not find any")
    assert "ray start --head" in said
