"""The serve line, ``serve.sh`` and the words of the manifests start a real vLLM."""

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

from tests.deploy.manifests import EDGES, as_run, container, documents, plan
from whet.core.provenance import cpu_dtype
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.deploy.render import write_deployment
from whet.engines import get_engine
from whet.engines.probe import generate_canary, is_healthy, request
from whet.engines.process import free_port
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

ARGS = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True, "dtype": cpu_dtype()}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
START_S = 780.0


def resolved(speculation: Speculation | None) -> ResolvedEngine:
    """The demo pair's target on the installed vLLM."""
    variant = Variant(
        name="fp16",
        weights="16bit",
        scheme="16bit",
        model_path=str(pair_paths()[0]),
        speculation=speculation,
        prefix_cache=True,
        engine_args=tuple(ARGS.items()),
        env=tuple(ENV.items()),
    )
    return get_engine("vllm").resolve(variant, EngineSpec())


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


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> str:
    """The URL of the server once it is healthy; fail where it ends before."""
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while time.monotonic() < deadline and not is_healthy(url):
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(1)
    return url


def wait_for_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the server is healthy and has generated."""
    generate_canary(wait_until_healthy(process, port, log), "target", timeout_s=120)


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
        [sys.executable, "-m", "whet", "check", "-v", "whet.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line.strip() for line in done.stdout.splitlines() if "--port 8000" in line)
    port, log = free_port(), tmp_path / "server.log"
    command = ["bash", "-c", line.replace("--port 8000", f"--port {port}")]
    with started(command, log) as process:
        wait_for_answer(process, port, log)


@pytest.mark.full
def test_the_shell_script_starts_a_server(tmp_path: Path) -> None:
    write_deployment(tmp_path, resolved(speculation=None))
    port, log = free_port(), tmp_path / "server.log"
    with started([str(tmp_path / "serve.sh")], log, PORT=str(port)) as process:
        wait_for_answer(process, port, log)


def test_the_manifests_start_a_server_that_wants_the_key(tmp_path: Path) -> None:
    """Compose and Kubernetes have the same words; they run here with the host's folders."""
    draft = str(pair_paths()[1])
    planned = plan(resolved(Speculation(method="draft_model", num_tokens=2, draft_path=draft)))
    compose = container("compose", documents("compose", planned))
    pod = container("k8s", documents("k8s", planned))
    assert compose["command"] == pod["args"]
    assert compose["entrypoint"] == pod["command"] == ["vllm", "serve"]
    words = [as_run(word) for word in compose["command"]]
    for mount in planned.mounts:
        words = [word.replace(mount.container, mount.host) for word in words]
    port, log = free_port(), tmp_path / "server.log"
    left_out = [item for each in planned.left_out for item in each.settings]
    own = [word for item in left_out if item.startswith("--") for word in item.split()]
    listen = ["--host", "127.0.0.1", "--port", str(port)]
    # ``vllm serve`` of the CPU build fails on its own package name; it only names the model so.
    program = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    probe = as_run(pod["startupProbe"]["exec"]["command"][2]).replace(":8000/", f":{port}/")
    env = {**ENV, **dict(planned.env), "VLLM_API_KEY": "the-key-of-this-test"}
    with started([*program, *words, *own, *listen], log, **env) as process:
        url = wait_until_healthy(process, port, log)
        body = json.loads(planned.probe_body)
        assert request(url, planned.probe_path, body=body, timeout_s=60)[0] == 401
        assert ends(probe, "another key") == 1
        assert ends(probe, env["VLLM_API_KEY"]) == 0
        status, metrics = request(url, planned.metrics_path, timeout_s=10)
    assert status == 200
    for family in EDGES:
        for edge in EDGES[family]:
            assert f'{family}_seconds_bucket{{engine="0",le="{edge}",' in metrics


def ends(code: str, key: str) -> int:
    """The exit code of a probe, in a process as the container runs it."""
    env = {**os.environ, "VLLM_API_KEY": key}
    return subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode
