"""``whet quality`` with real vLLM on the bundled target: kept, held to itself, held to a fault."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.faults import scale_layer

from whet.core.protocols import Server
from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]
LIMITS = ("--max-documents", "60", "--max-tasks", "8", "--max-tokens", "128")


TARGET = pair_paths()[0]


def gate(folder: Path, target: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whet", "quality", str(target), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def passed(folder: Path, target: Path | str) -> dict[str, Any]:
    """The record of ``target``, which passes against the saved baseline."""
    done = gate(folder, target, "--against", "kept", "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record: dict[str, Any] = json.loads(done.stdout)["record"]
    assert record["identity"]["problems"] == []
    assert record["perplexity_ratio"]["value"] == pytest.approx(1.0, abs=1e-3)
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the saved baseline ``kept``, measured on the checkpoint."""
    path = tmp_path_factory.mktemp("gate")
    done = gate(path, TARGET, "--save", "kept", *LIMITS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return path


def test_a_server_of_the_same_checkpoint_passes(folder: Path, demo_server: Server) -> None:
    # A server does not show which weights it has, so the baseline is no reference of the same ones.
    assert passed(folder, demo_server.base_url)["twin"] != "baseline"


@pytest.mark.full
def test_a_checkpoint_passes_against_itself(folder: Path) -> None:
    assert passed(folder, TARGET)["twin"] == "baseline"


def test_a_damaged_checkpoint_fails(folder: Path) -> None:
    done = gate(folder, scale_layer(TARGET, folder / "damaged", 1, 1.5), "--against", "kept")
    assert done.returncode == 9, done.stdout[-3000:] + done.stderr[-3000:]
    assert "perplexity changes by" in done.stderr
