"""``whet quantize`` with its check on real vLLM: two schemes in one checkpoint, both kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]


def test_asymmetric_4_bit_with_8_bit_units_loads_and_answers(tmp_path: Path) -> None:
    words = [str(pair_paths()[0]), str(tmp_path / "out"), "--scheme", "W4A16_ASYM"]
    words += ["--method", "awq+gptq", "--mixed-keep", "W8A8", "--bits-per-weight", "5.5"]
    words += ["--samples", "16", "--max-tokens", "64", "--serve-check"]
    done = subprocess.run(
        [sys.executable, "-m", "whet", "quantize", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-3000:]
    # CPUWNA16 where there is AVX-512, whet's own TorchInt4 elsewhere.
    assert "Int4LinearKernel" in told.replace("CPUWNA16", "Int4")
    assert "Int8ScaledMMLinearKernel" in told
    assert "it answered" in told
