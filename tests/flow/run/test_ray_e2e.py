"""Real vLLM on two workers of a Ray cluster, each on a core of its own; one worker is killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from whet.core.records.engine import StartFacts
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores"),
]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of two nodes, each on one core."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    first = ["--head", "--port", address.split(":")[1], "--include-dashboard", "false"]
    common = ["--num-cpus", "1", "--object-store-memory", str(100 * 2**20), "--node-ip-address"]
    cores = sorted(os.sched_getaffinity(0))
    nodes: list[subprocess.Popen[bytes]] = []
    for core, words in zip(cores, (first, ["--address", address]), strict=False):
        command = ["taskset", "-c", str(core), *RAY, "start", "--block", *words, *common]
        with (tmp_path / "ray.txt").open("ab") as log:
            nodes.append(subprocess.Popen([*command, "127.0.0.1"], stdout=log, stderr=log))
        deadline = time.monotonic() + 60
        while (tmp_path / "ray.txt").read_text().count("Ray runtime started") < len(nodes):
            assert time.monotonic() < deadline, "the node did not start"
            time.sleep(0.2)
    yield address
    for node in reversed(nodes):  # ``ray stop`` would end every cluster of this machine
        node.terminate()
        node.wait(60)


def write_spec(folder: Path) -> Path:
    data = {
        "name": "two",
        "model": {"target": str(pair_paths()[0])},
        "hardware": {"price_usd_per_hour": 1.0},
        "engine": {"args": {"max_model_len": 2048, "enforce_eager": True}},
        "workload": {"max_output_tokens": 32, "max_input_tokens": 512, "long_system_share": 0.0},
        "load": {
            "concurrency": [2],
            "trials": 2,
            "min_requests": 8,
            "requests_per_slot": 4,
            "warmup_requests": 4,
            "confirm": False,
        },
        "quality": {"max_documents": 60, "max_tasks": 16, "max_tokens": 64, "sampled": False},
        "objective": {"ttft_ms": [60000], "recommend_ttft_ms": 60000},
        "variants": {"fp16": {}, "cache": {"prefix_cache": True}},
    }
    path = folder / "whet.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def workers() -> list[psutil.Process]:
    """Processes in which Ray runs a session."""
    every = psutil.process_iter(["cmdline"])
    return [p for p in every if (p.info["cmdline"] or [""])[0].startswith("ray::run_session")]


def engines() -> list[psutil.Process]:
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if any(word.startswith(("vllm.", "VLLM::")) for word in each.info["cmdline"] or [])
    ]


def test_two_workers_measure_with_vllm_and_one_is_killed(tmp_path: Path, head: str) -> None:
    spec, root = write_spec(tmp_path), tmp_path / "runs" / "two"
    core = str(min(os.sched_getaffinity(0)))
    words = ["run", str(spec), "--executor", "ray", "--address", head]
    process = subprocess.Popen(
        ["taskset", "-c", core, sys.executable, "-m", "whet", *words],
        cwd=tmp_path,
        stdout=(tmp_path / "out.txt").open("w"),
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 600
    killed = 0
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(1.0)
        journal = root / "journal.jsonl"
        if not killed and journal.exists() and '"kind": "trials"' in journal.read_text():
            for victim in workers()[:1]:
                killed = victim.pid
                victim.kill()
    said = " ".join((tmp_path / "out.txt").read_text().split())  # lines are wrapped
    assert process.returncode in (0, 9), said[-4000:]
    assert killed
    store = RunStore.read(root)
    trials = store.all("trials", TrialRecord)
    assert {(t.variant, t.trial) for t in trials if t.status == "complete"} == {
        (name, trial) for name in ("fp16", "cache") for trial in range(2)
    }
    written = Counter(
        line.split('"key": "')[1].split('"')[0]
        for line in (root / "journal.jsonl").read_text().splitlines()
        if '"kind": "trials"' in line and '"complete"' in line
    )
    assert set(written.values()) == {1}, "nothing is measured twice"
    starts = [store.get("starts", key, StartFacts) for key in store.keys("starts")]
    assert len({start.worker for start in starts if start}) == 2
    assert Run(store).decision is not None
    assert not [each.cmdline() for each in engines()]
