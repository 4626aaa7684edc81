"""``whet quality`` with real vLLM on the bundled target: kept, held to itself, held to a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab.faults import scale_layer

from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]
LIMITS = ("--max-documents", "8", "--max-tasks", "8", "--max-tokens", "128")


def gate(folder: Path, target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whet", "quality", str(target), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_checkpoint_passes_against_itself_and_a_damaged_one_fails(tmp_path: Path) -> None:
    target = pair_paths()[0]
    done = gate(tmp_path, target, "--save", "kept", *LIMITS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    done = gate(tmp_path, target, "--against", "kept", "--json", "same.json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads((tmp_path / "same.json").read_text())
    assert told["record"]["twin"] == "baseline"
    assert told["record"]["identity"]["problems"] == []
    assert told["record"]["perplexity_ratio"]["value"] == pytest.approx(1.0, abs=1e-3)

    done = gate(tmp_path, scale_layer(target, tmp_path / "damaged", 1, 1.5), "--against", "kept")
    assert done.returncode == 9, done.stdout[-3000:] + done.stderr[-3000:]
    assert "perplexity changes by" in done.stderr
