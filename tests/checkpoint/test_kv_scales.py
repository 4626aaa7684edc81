"""KV scales are uncalibrated where every one of them is exactly 1."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file  # noqa: E402

from whet.checkpoint.doubts import kv_scales_problem  # noqa: E402


def write(folder: Path, *scales: float, dtype: torch.dtype = torch.float32) -> Path:
    tensors = {"model.layers.0.self_attn.q_proj.weight": torch.ones(2, 2)}
    for layer, scale in enumerate(scales):
        for name in ("k_scale", "v_scale"):
            value = torch.tensor([scale if name == "v_scale" else 1.0], dtype=dtype)
            tensors[f"model.layers.{layer}.self_attn.{name}"] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_ones_are_told_with_their_number(dtype: torch.dtype, tmp_path: Path) -> None:
    problem = kv_scales_problem(write(tmp_path, 1.0, 1.0, dtype=dtype))
    assert problem is not None
    assert problem.startswith("all 4 KV scales of")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_scale_that_is_not_one_is_a_calibration(dtype: torch.dtype, tmp_path: Path) -> None:
    """The next number after 1 in bfloat16, the coarsest of the three."""
    assert kv_scales_problem(write(tmp_path, 1.0, 1.0078125, dtype=dtype)) is None


def test_a_folder_without_scales_has_no_problem(tmp_path: Path) -> None:
    assert kv_scales_problem(write(tmp_path)) is None
