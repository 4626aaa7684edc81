"""The main job on real vLLM and the bundled pair: killed in the middle, resumed, proved."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from whet.core.provenance import cpu_dtype
from whet.core.records import QualityRecord, VerdictSet
from whet.core.run import Run
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

WHET = [sys.executable, "-m", "whet"]
DONE = '"status": "complete", "reason": null}'
VARIANTS = ("fp16", "awq+spec+cache")
FIRST_COLUMNS = "config,batch_size,ttft_p50_ms,ttft_p95_ms,tps_mean,vram_gb,cost_per_1m_tokens"


def write_spec(folder: Path) -> Path:
    target, draft = pair_paths()
    spec = {
        "name": "e2e",
        "model": {"target": str(target), "draft": str(draft)},
        "hardware": {"price_usd_per_hour": 0.085},
        "engine": {
            "args": {
                "max_model_len": 2048,
                "enforce_eager": True,
                "block_size": 32,
                "dtype": cpu_dtype(),
            },
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        },
        "recipes": {"awq": {"calibration": {"samples": 32, "max_tokens": 128}}},
        "workload": {"long_system_share": 0.2, "max_output_tokens": 24, "shared_prefixes": 2},
        "load": {
            "batch_sizes": [1, 4],
            "trials": 1,
            "min_requests": 8,
            "requests_per_slot": 2,
            "warmup_requests": 4,
            "confirm": False,
            "together": [list(VARIANTS)],
        },
        "quality": {"max_documents": 60, "max_tasks": 16, "max_tokens": 256},
        "objective": {"ttft_ms": [60000], "recommend_ttft_ms": 60000, "quality": [0.01, 0.05]},
        "variants": {
            "fp16": {},
            "awq+spec+cache": {
                "weights": "awq",
                "speculation": {"num_tokens": 4},
                "prefix_cache": True,
            },
        },
    }
    path = folder / "whet.yaml"
    path.write_text(json.dumps(spec))  # JSON is YAML
    return path


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
            if '"kind": "trials"' in line and line.endswith(DONE):
                return str(json.loads(line)["key"])
        time.sleep(0.2)
    raise AssertionError(f"no trial ended; whet ended with {process.poll()}")


def test_killed_in_the_middle_then_resumed_to_a_proved_recommendation(tmp_path: Path) -> None:
    spec, root = write_spec(tmp_path), tmp_path / "runs" / "e2e"
    command = [*WHET, "run", str(spec), "-o", str(tmp_path / "runs")]
    before = {process.pid for process in engines()}
    alone = [*command, "--set", "load.together=[]"]  # one server is up sooner
    first = subprocess.Popen(alone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    done = resume([*command, "--resume"], root)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (root / "trials" / f"{key}.json").read_bytes() == trial, "measured once"
    check_results(root)
    for name in ("report.md", "report.html", "requests.parquet", "decision.json"):
        assert (root / name).stat().st_size > 0
    for variant in VARIANTS:
        assert (root / "deploy" / variant / "compose.yaml").exists()


def resume(command: list[str], root: Path) -> subprocess.CompletedProcess[str]:
    """Go on until every trial counts: one whose client was late is invalid, and tried again."""
    keys = [f"{variant}--b{size:03d}-t0" for variant in VARIANTS for size in (1, 4)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        store = RunStore.read(root)
        if all(store.done("trials", key) for key in keys):
            break
    return done


def check_results(root: Path) -> None:
    text = (root / "results.csv").read_text()
    assert text.startswith(FIRST_COLUMNS + ",")
    rows = {(row["config"], row["batch_size"]): row for row in csv.DictReader(text.splitlines())}
    assert set(rows) == {(v, b) for v in VARIANTS for b in ("1", "4")}
    assert all(float(row["tps_mean"]) > 0 and float(row["vram_gb"]) > 0 for row in rows.values())
    store = RunStore.read(root)
    outcomes = {
        (verdict.variant, verdict.claim.kind, verdict.batch_size): verdict.outcome
        for held in store.all("verdicts", VerdictSet)
        for verdict in held.verdicts
    }
    kinds = {kind for _, kind, size in outcomes if size is None}
    assert kinds == {"weights", "settings", "execution"}
    assert len(outcomes) == 14, "those once, speculation and cache at each batch size, twice"
    assert set(outcomes.values()) == {"proved"}, outcomes
    spec = rows["awq+spec+cache", "4"]
    assert 2.5 <= float(spec["acceptance_length"]) <= 4.5
    assert abs(float(spec["prefix_hit_rate"]) - float(spec["expected_hit_rate"])) < 0.05
    quality = store.get("quality", "awq+spec+cache", QualityRecord)
    assert quality is not None
    assert quality.perplexity_ratio is not None
    assert 0.99 < quality.perplexity_ratio.value < 1.03
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
