"""Quantized checkpoints of real architectures on real vLLM, against transformers."""

from pathlib import Path

import pytest

from tests.quant.tiny_engine import TOLERANCE, measure, prepare
from tests.quant.tiny_models import KINDS, MIXTURES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
_DENSE = [kind for kind in KINDS if kind not in MIXTURES]


@pytest.fixture(autouse=True)
def _sixteen_bit_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; with AMX vLLM would round them to 8 bits."""
    monkeypatch.setenv("VLLM_CPU_INT4_W4A8", "0")


def check(kind: str, method: str, calibration: Path, folder: Path) -> None:
    found = measure(prepare(kind, method, folder, calibration))
    assert found.difference <= TOLERANCE * found.rounding < found.permuted
    assert "CPUWNA16LinearKernel" in found.kernels


@pytest.mark.full
def test_fused_projections_answer_as_their_dequantized_weights(
    calibration: Path, tmp_path: Path
) -> None:
    """Permuting the scales of one projection fails the same test."""
    check("phi3", "awq", calibration, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("kind", [kind for kind in _DENSE if kind != "phi3"])
def test_every_dense_family(kind: str, calibration: Path, tmp_path: Path) -> None:
    check(kind, "gptq" if kind == "qwen3" else "awq", calibration, tmp_path)
