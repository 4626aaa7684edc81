"""Runs, written once: whole, with every check of the gate, hostile, interrupted, just begun.

``whole`` is as older runs are: its quality records hold no more than perplexity and tasks.
"""

import pytest

from tests.report.run_factory import make_run
from tests.report.run_gate import put_gate
from whet.core.run import Run
from whet.core.store import RunStore


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(make_run(tmp_path_factory.mktemp("runs") / "whole"))


@pytest.fixture(scope="session")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(put_gate(make_run(tmp_path_factory.mktemp("runs") / "gated").root))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = make_run(tmp_path_factory.mktemp("runs") / "hostile", hostile=True).root
    return Run(put_gate(root, hostile=True))


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(make_run(tmp_path_factory.mktemp("runs") / "interrupted", stop_after=7))


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("runs") / "begun"
    with RunStore.open(root) as store:
        store.note("models", "target", status="failed", reason="killed")
    return Run(RunStore.read(root))
