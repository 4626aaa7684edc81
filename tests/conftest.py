"""What every test shares: one thread for each parallel worker, no wait for the disk, no lost GPU.

A `gpu` test is skipped where there is no GPU.
"""

import os
import shutil

import pytest

# Read by torch and NumPy when they are imported. Without it every worker starts a thread for each
# core, and the threads of one worker wait for those of the other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("nvidia-smi"):
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run syncs each record, against a loss of power: no test cuts it, and many write a run."""
    monkeypatch.setattr("whet.core.store.os.fsync", lambda _handle: None)


@pytest.fixture
def lenient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept a client that sends late or uses a whole core, and other work on the machine.

    A scripted server answers from a thread of the client's own process, beside another worker: a
    pause of 10 ms would fail a test as it should fail a measurement. ``tests/load`` has the tests
    of the check itself.
    """
    from whet.load import disturbance, health

    monkeypatch.setattr(health, "LATENESS_FLOOR_NS", 10 * 10**9)
    monkeypatch.setattr(health, "MAX_CPU_SHARE", 2.0)
    monkeypatch.setattr(disturbance, "MAX_LOST_SHARE", 1.0)
