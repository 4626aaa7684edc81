"""An FP8 KV cache whose scales nobody calibrated: refused before a server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.stage import FakeEngine, tiny_spec
from whet.core.spec import Spec
from whet.flow.run.check.check import Checked, check_spec
from whet.flow.run.check.checkpoints import Checkpoints

FP8 = {"kv_cache_dtype": "fp8"}
RECIPE: dict[str, Any] = {
    "recipes": {"r": {"method": "rtn", "kv_cache": "fp8"}},
    "variants": {"fp16": {}, "v": {"weights": "r"}},
}


def with_scales(folder: Path, scale: float) -> Path:
    """The checkpoint with a scale of keys and values in both of its layers."""
    file = folder / "model.safetensors"
    names = [f"model.layers.{i}.self_attn.{part}_scale" for i in (0, 1) for part in "kv"]
    made = {name: np.array([scale], dtype=np.float32) for name in names}
    save_file(load_file(file) | made, file, metadata={"format": "pt"})
    return folder


def seen(spec: Spec, root: Path) -> Checked:
    return check_spec(spec, root, Checkpoints(root, {}), engines=FakeEngine())


def told(found: Checked) -> list[tuple[str | None, str]]:
    return [(problem.variant, problem.message) for problem in found.problems]


@pytest.mark.parametrize(("scale", "problems"), [(1.0, 1), (0.02, 0)])
def test_a_checkpoint_with_scales_of_one_is_infeasible(
    scale: float, problems: int, tmp_path: Path
) -> None:
    with_scales(write_tiny_llama(tmp_path / "run" / "checkpoints" / "r"), scale)
    found = told(seen(tiny_spec(tmp_path, **RECIPE), tmp_path / "run"))
    assert [variant for variant, _ in found] == ["v"] * problems
    assert all("all 4 KV scales" in message for _, message in found)


def test_scales_that_are_not_used_are_no_problem(tmp_path: Path) -> None:
    with_scales(write_tiny_llama(tmp_path / "run" / "checkpoints" / "r"), 1.0)
    words = {"weights": "r", "args": {"kv_cache_dtype": "auto"}}
    spec = tiny_spec(tmp_path, **RECIPE | {"variants": {"fp16": {}, "v": words}})
    assert told(seen(spec, tmp_path / "run")) == []


def test_only_a_recipe_with_a_kv_cache_brings_scales(tmp_path: Path) -> None:
    """A plain FP8 KV cache on 16-bit weights has the engine's default, and that is no fault."""
    variants = {"fp16": {}, "plain": {"args": FP8}, "v": {"weights": "r"}}
    found = seen(tiny_spec(tmp_path, **RECIPE | {"variants": variants}), tmp_path / "r")
    brings = {item.variant.name: item.variant.kv_scales for item in found.resolved.variants}
    assert brings == {"fp16": False, "plain": False, "v": True}
