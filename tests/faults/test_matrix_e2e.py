"""Five cells of the matrix on real vLLM: the engine, the process and the disk fail from outside."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.cli.stage import Said
from tests.faults.conftest import LOAD
from tests.faults.oracle import judge
from tests.faults.stage import Stage
from tests.flow.run.test_as_stored_e2e import SPEC
from whet.core.errors import Interrupted, StorageError
from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]
FROZEN_S, TIMEOUT_S = 25.0, 20.0


class RealStage(Stage):
    """A stage on real vLLM: a command is a process like any other."""

    def start(self, *more: str, **_: Any) -> Any:
        (self.folder / "work").mkdir(exist_ok=True)
        with (self.folder / "out").open("w") as out, (self.folder / "err").open("w") as err:
            words = [sys.executable, "-m", "whet", *self.words, *more]
            return subprocess.Popen(words, cwd=self.folder / "work", stdout=out, stderr=err)

    def end(self, process: Any) -> Said:
        code = process.wait(timeout=400)
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        return Said(code=code, out=out, err=err)


def core(tree: list[psutil.Process]) -> psutil.Process:
    return next(each for each in tree if "EngineCore" in " ".join(each.cmdline()))


def freeze(tree: list[psutil.Process]) -> None:
    """Let the engine stand still for longer than a request may take."""
    core(tree).suspend()
    time.sleep(FROZEN_S)
    core(tree).resume()


Strike = Callable[[list[psutil.Process]], object]
CELLS: dict[str, tuple[str, Strike, int | None]] = {
    "core-killed-in-a-trial": ("workloads", lambda tree: core(tree).kill(), None),
    "core-frozen-in-a-trial": ("workloads", freeze, None),
    "disk-full-in-a-trial": (
        "workloads",
        lambda tree: tree[0].rlimit(psutil.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY)),
        StorageError.exit_code,
    ),
    "SIGTERM-at-a-start": ("variants", lambda tree: tree[0].terminate(), Interrupted.exit_code),
    "SIGKILL-between-trials": ("trials", lambda tree: tree[0].kill(), -signal.SIGKILL),
}


@pytest.fixture
def stage(tmp_path: Path) -> RealStage:
    more = {"concurrency": [2], "requests_per_slot": 8, "request_timeout_s": TIMEOUT_S}
    data: dict[str, Any] = {
        **SPEC,
        "name": "tiny",
        "model": {"target": str(pair_paths()[0])},
        "workload": {**SPEC["workload"], "max_output_tokens": 128},  # type: ignore[dict-item]
        "load": LOAD | more,
        "variants": {"fp16": {}},
        "baseline": "fp16",
    }
    (tmp_path / "whet.yaml").write_text(yaml.safe_dump(data))
    return RealStage(folder=tmp_path, spec=tmp_path / "whet.yaml")


@pytest.mark.parametrize("name", CELLS)
def test_a_fault_on_real_vllm(stage: RealStage, name: str) -> None:
    kind, strike, code = CELLS[name]
    process = stage.start()
    journal, deadline = stage.root / "journal.jsonl", time.monotonic() + 300
    while not journal.exists() or f'"kind": "{kind}"' not in journal.read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None, "it ended before"
        time.sleep(0.05)
    time.sleep(0.3)
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    strike(tree)
    result = stage.end(process)
    assert not psutil.wait_procs(tree[1:], timeout=30)[1], "a process outlives whet"
    assert judge(stage, result, (code,), 2).keys() >= {"fp16--b002-t0", "fp16--b002-t1"}
