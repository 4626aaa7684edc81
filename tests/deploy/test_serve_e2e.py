"""The printed serve line and ``serve.sh`` start a real vLLM where the run measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from whet.core.provenance import cpu_dtype
from whet.core.records import Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.deploy import write_deployment
from whet.engines import get_engine
from whet.engines.probe import generate_canary, is_healthy
from whet.engines.process import free_port
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

ARGS = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True, "dtype": cpu_dtype()}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
START_S = 780.0


@contextmanager
def started(command: Sequence[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, and end the whole group."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)


def wait_for_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server is healthy and has generated; fail where it ends before."""
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while time.monotonic() < deadline and not is_healthy(url):
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(1)
    generate_canary(url, "target", timeout_s=120)


@pytest.mark.full
def test_the_line_that_check_prints_starts_a_server(tmp_path: Path) -> None:
    target, _ = pair_paths()
    spec = {
        "name": "line",
        "model": {"target": str(target)},
        "hardware": {"price_usd_per_hour": 0.085},
        "engine": {"args": ARGS, "env": ENV},
        "workload": {"max_output_tokens": 24},
        "variants": {"fp16": {}},
    }
    (tmp_path / "whet.yaml").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-m", "whet", "check", "whet.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    line, port, log = done.stdout.splitlines()[-1].strip(), free_port(), tmp_path / "server.log"
    assert line.count("--port 8000") == 1
    command = ["bash", "-c", line.replace("--port 8000", f"--port {port}")]
    with started(command, log) as process:
        wait_for_answer(process, port, log)


def test_the_shell_script_starts_a_server(tmp_path: Path) -> None:
    target, _ = pair_paths()
    variant = Variant(
        name="fp16",
        weights="16bit",
        scheme="16bit",
        model_path=str(target),
        speculation=None,
        prefix_cache=True,
        engine_args=tuple(ARGS.items()),
        env=tuple(ENV.items()),
    )
    write_deployment(tmp_path, get_engine("vllm").resolve(variant, EngineSpec()))
    port, log = free_port(), tmp_path / "server.log"
    with started([str(tmp_path / "serve.sh")], log, PORT=str(port)) as process:
        wait_for_answer(process, port, log)
