"""Four runs, written once: whole, hostile, interrupted after seven cells, and just begun."""

import pytest

from tests.report.run_factory import make_run
from whet.core.store import RunStore
from whet.report import RunView, load_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "whole"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "hostile", hostile=True))


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "interrupted", stop_after=7))


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    root = tmp_path_factory.mktemp("runs") / "begun"
    with RunStore.open(root) as store:
        store.note("models", "target", status="failed", reason="killed")
    return load_run(RunStore.read(root))
