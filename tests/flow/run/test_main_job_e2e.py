"""The tutorial's commands on real vLLM, a hub and a log: killed in the middle, resumed, proved."""

from __future__ import annotations

import csv
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.model_hub import Model, ModelHub, serve_hub
from whet.core.records.evidence import VerdictSet
from whet.core.records.load import WorkloadFacts
from whet.core.records.quality import QualityRecord
from whet.core.run import Run
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.demo.bundled import CHAT_LOG
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

WHET = [sys.executable, "-m", "whet"]
DONE = '"status": "complete", "reason": null, "sha256": "'
LEVERS = {
    "draft+cache": "speculation: {num_tokens: 4}, prefix_cache: true",
    "awq+draft+cache": "weights: awq, speculation: {num_tokens: 4}, prefix_cache: true",
}
SMALLER = (
    "search=null",
    "load={concurrency: [1, 4], trials: 1, min_requests: 8, requests_per_slot: 2, "
    "warmup_requests: 4, confirm: false}",
    "quality={max_documents: 60, max_tasks: 16, max_tokens: 256, sampled: false, golden_probes: 4}",
    "objective={ttft_ms: [60000], recommend_ttft_ms: 60000, quality: [0.01, 0.05]}",
    "recipes.awq.calibration={samples: 32, max_tokens: 128}",
)
"""The spec in a few minutes: two variants in place of a search, a tenth of the requests."""
FIRST_COLUMNS = "config,batch_size,ttft_p50_ms,ttft_p95_ms,tps_mean,vram_gb,cost_per_1m_tokens"


def commands() -> list[list[str]]:
    """The three commands of docs/tutorial.md."""
    page = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [line.split()[1:] for line in block.splitlines()]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[tuple[ModelHub, dict[str, str]]]:
    """A hub with the demo pair, and the environment of a user who has it and a log at hand."""
    (tmp_path / "log.jsonl").write_bytes(lzma.decompress(CHAT_LOG.read_bytes()))
    target, draft = pair_paths()
    with serve_hub() as hub:
        hub.models["owner/name"] = Model(target)
        hub.models["owner/draft"] = Model(draft)
        own = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_TOKEN": ""}
        yield hub, {**os.environ, **own}


def engines() -> list[psutil.Process]:
    """Every vLLM process of this machine that serves one of this test's models."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any("vllm" in word.lower() for word in process.info["cmdline"] or [])
    ]


def first_trial(journal: Path, process: subprocess.Popen[bytes]) -> str:
    """The key of the first valid trial; it waits for that."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        for line in journal.read_text().splitlines() if journal.exists() else ():
            if '"kind": "trials"' in line and DONE in line and line.endswith("}"):
                return str(json.loads(line)["key"])
        time.sleep(0.2)
    raise AssertionError(f"no trial ended; whet ended with {process.poll()}")


@pytest.mark.parametrize(
    "variant", ["draft+cache", pytest.param("awq+draft+cache", marks=pytest.mark.full)]
)
def test_a_log_and_a_hub_id_killed_in_the_middle_then_resumed_to_a_proved_recommendation(
    tmp_path: Path, user: tuple[ModelHub, dict[str, str]], variant: str
) -> None:
    hub, env = user
    init, check, run = ([*WHET, *words] for words in commands())
    for command in ([*init, "--draft", "owner/draft"], check):
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not hub.sent["model.safetensors"] > 10**6, "headers only"
    settings = (*SMALLER, f"variants={{fp16: {{}}, {variant}: {{{LEVERS[variant]}}}}}")
    command, root = (
        [*run, *(word for setting in settings for word in ("--set", setting))],
        tmp_path / "runs" / "name",
    )
    before = {process.pid for process in engines()}
    first = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    key = first_trial(root / "journal.jsonl", first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    kept = RunStore.read(root)
    assert kept.done("trials", key)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and {p.pid for p in engines()} - before:
        time.sleep(0.2)
    assert not {p.pid for p in engines()} - before, "no engine outlives whet"

    trial = (root / "trials" / f"{key}.json").read_bytes()
    done = resume([*command, "--resume"], variant, root, env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (root / "trials" / f"{key}.json").read_bytes() == trial, "measured once"
    check_results(root, variant)
    for name in ("report.md", "report.html", "requests.parquet", "decision.json"):
        assert (root / name).stat().st_size > 0
    for name in ("fp16", variant):
        assert (root / "reproduce" / name / "compose.yaml").exists()
    served = (root / "reproduce" / "fp16" / "serve.sh").read_text()
    assert f"owner/name --revision {hub.models['owner/name'].commit}" in served
    report = subprocess.run([*WHET, "report", str(root)], capture_output=True, check=False)
    assert report.returncode == 0
    check_privacy(root)


def check_privacy(root: Path) -> None:
    """No question of the log is in a file that is shown or deployed."""
    lines = (root / "inputs" / "traffic.jsonl").read_text().splitlines()
    asked = {json.loads(line)["messages"][-1]["content"] for line in lines}
    long = {text for text in asked if len(text) > 60}
    assert (root / "golden" / "fp16.json").exists(), "of the built-in text"
    shown = [root / "journal.jsonl", *root.glob("report.*"), *root.glob("reproduce/**/*")]
    for file in shown:
        text = file.read_text() if file.is_file() else ""
        assert not any(each in text for each in long), file


def resume(
    command: list[str], variant: str, root: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Go on until every trial counts: one whose client was late is invalid, and tried again."""
    keys = [f"{name}--b{size:03d}-t0" for name in ("fp16", variant) for size in (1, 4)]
    for _ in range(3):
        done = subprocess.run(
            command,
            cwd=root.parents[1],
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        store = RunStore.read(root)
        if all(store.done("trials", key) for key in keys):
            break
    return done


def check_results(root: Path, variant: str) -> None:
    text = (root / "results.csv").read_text()
    assert text.startswith(FIRST_COLUMNS + ",")
    rows = {(row["config"], row["batch_size"]): row for row in csv.DictReader(text.splitlines())}
    assert set(rows) == {(v, b) for v in ("fp16", variant) for b in ("1", "4")}
    assert all(float(row["tps_mean"]) > 0 and float(row["vram_gb"]) > 0 for row in rows.values())
    store = RunStore.read(root)
    outcomes = {
        (verdict.variant, verdict.claim.kind, verdict.load): verdict.outcome
        for held in store.all("verdicts", VerdictSet)
        for verdict in held.verdicts
    }
    kinds = {kind for _, kind, size in outcomes if size is None}
    assert kinds == {"weights", "settings", "execution"}
    assert len(outcomes) == 14, "those once, speculation and cache at each concurrency, twice"
    assert set(outcomes.values()) == {"proved"}, outcomes
    spec = rows[variant, "4"]
    assert 2.5 <= float(spec["acceptance_length"]) <= 4.5
    workload = store.get("workloads", "b004-t0", WorkloadFacts)
    assert workload is not None
    assert workload.least_hit_rate is not None
    assert workload.most_hit_rate is not None
    lowest, highest = workload.least_hit_rate - 0.02, workload.most_hit_rate + 0.02
    assert 0 < lowest <= float(spec["prefix_hit_rate"]) <= highest
    quality = store.get("quality", variant, QualityRecord)
    assert quality is not None
    assert quality.perplexity_ratio is not None
    assert 0.99 < quality.perplexity_ratio.value < 1.03
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
