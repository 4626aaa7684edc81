"""``whet calibrate`` on the demo model in real vLLM on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.alone,  # it measures
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]


def test_two_models_calibrate_a_machine_with_the_error_of_what_was_left_out(tmp_path: Path) -> None:
    words = ["calibrate", *map(str, pair_paths()), "--out", "mine.json", "--engine-arg"]
    done = subprocess.run(
        [sys.executable, "-m", "whet", *words, "kv_cache_memory_bytes=1000000000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads((tmp_path / "mine.json").read_text())
    assert document["cells"] >= 8
    assert 0 < document["errors"]["e2e"] < 1
    assert document["engine"].startswith("vLLM 0.")
