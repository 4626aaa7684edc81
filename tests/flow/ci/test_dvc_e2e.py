"""The generated pipeline by DVC itself, on the demo target and real vLLM: about five minutes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core.provenance import cpu_dtype
from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

RUN = Path("runs") / "pipeline"


def spec(**awq: Any) -> dict[str, Any]:
    """One quantized variant, one start of its server, a few requests."""
    return {
        "name": "pipeline",
        "model": {"target": "./target"},
        "hardware": {"price_usd_per_hour": 0.085},
        "engine": {
            "args": {
                "max_model_len": 1152,
                "max_num_seqs": 16,
                "enforce_eager": True,
                "block_size": 32,
                "dtype": cpu_dtype(),
            },
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        },
        "recipes": {"awq": {"calibration": {"samples": 16, "max_tokens": 64}, **awq}},
        "variants": {"awq": {"weights": "awq"}},
        "baseline": "awq",
        "workload": {"max_output_tokens": 32},
        "load": {
            "concurrency": [2],
            "trials": 1,
            "confirm": False,
            "min_requests": 8,
            "requests_per_slot": 4,
            "warmup_requests": 2,
        },
        "quality": {"max_documents": 60, "max_tasks": 16, "max_tokens": 256, "sampled": False},
        "objective": {"ttft_ms": [60000], "recommend_ttft_ms": 60000, "quality": [0.01]},
    }


class Repository:
    """A git repository with DVC, and whet's commands on the path."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root = root
        path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1"}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.root, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def commit(self, message: str) -> None:
        name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        self.run("git", "add", "-A")
        self.run("git", *name, "commit", "-qm", message)

    def write(self, data: dict[str, Any]) -> None:
        """The spec, and the files that whet ci init makes of it."""
        (self.root / "whet.yaml").write_text(yaml.safe_dump(data))
        for path in (self.root / "dvc.yaml", self.root / ".github" / "workflows" / "whet.yml"):
            path.unlink(missing_ok=True)
        self.run("whet", "ci", "init")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    venv.create(tmp_path / "venv", with_pip=True)
    tools, root = tmp_path / "venv" / "bin", tmp_path / "repository"
    subprocess.run([tools / "pip", "install", "-q", "dvc"], check=True, capture_output=True)
    shutil.copytree(pair_paths()[0], root / "target")
    made = Repository(root, tools)
    made.run("git", "init", "-q")
    made.run("dvc", "init", "-q")
    made.run("dvc", "add", "-q", "target")
    return made


def test_a_changed_recipe_shows_in_the_metrics(repository: Repository) -> None:
    root = repository.root
    repository.write(spec())
    repository.run("dvc", "repro", "-q", "run")
    shutil.copytree(root / RUN, root / "baseline", ignore=shutil.ignore_patterns("checkpoints"))
    repository.run("dvc", "add", "-q", "baseline")
    repository.run("dvc", "repro", "-q")
    before = json.loads((root / "metrics.json").read_text())
    assert before["checks_fail"] == 0
    assert (root / "checkpoints" / "awq" / "model.safetensors").exists()
    repository.commit("the deployed state")
    assert "didn't change" in repository.run("dvc", "repro"), "nothing is done twice"

    repository.write(spec(group_size=32))
    assert "quantize-awq" in repository.run("dvc", "status")
    repository.run("dvc", "repro", "-q")
    changes = json.loads(repository.run("dvc", "metrics", "diff", "--json"))["metrics.json"]
    assert changes["perplexity"]["old"] == before["perplexity"]
    assert changes["perplexity"]["diff"] != 0
    assert changes["b002_tps_mean"]["new"] > 0
    summary = (root / "whet-ci.md").read_text()
    assert "recipes.awq.group_size: 128 → 32" in summary.replace("\\", "")
    assert "weights of recipe awq" in summary
