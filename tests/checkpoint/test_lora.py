"""The rank of an adapter, and folders that hold none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint_factory import write_adapter
from whet.checkpoint import lora_rank
from whet.core.errors import CheckpointError


def test_the_rank_is_r(tmp_path: Path) -> None:
    assert lora_rank(write_adapter(tmp_path, r=16)) == 16


@pytest.mark.parametrize(
    ("pattern", "rank"), [({"q_proj": 32, "k_proj": 4}, 32), ({"q_proj": 2}, 8), ({}, 8), (None, 8)]
)
def test_a_module_of_a_larger_rank_decides(tmp_path: Path, pattern: object, rank: int) -> None:
    assert lora_rank(write_adapter(tmp_path, r=8, rank_pattern=pattern)) == rank


@pytest.mark.parametrize("r", [None, 0, -1, "8", 8.0, True, 10**9, 513])
def test_a_rank_that_is_no_count_is_refused(tmp_path: Path, r: object) -> None:
    with pytest.raises(CheckpointError, match="save the adapter again"):
        lora_rank(write_adapter(tmp_path, r=r))


@pytest.mark.parametrize("pattern", [{"q_proj": "32"}, [32]])
def test_a_pattern_without_ranks_is_refused(tmp_path: Path, pattern: object) -> None:
    with pytest.raises(CheckpointError, match="save the adapter again"):
        lora_rank(write_adapter(tmp_path, r=8, rank_pattern=pattern))


def test_a_folder_without_an_adapter_says_which_folder_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="save_pretrained"):
        lora_rank(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[8]")
    with pytest.raises(CheckpointError, match="does not hold a JSON object"):
        lora_rank(tmp_path)


def test_an_adapter_needs_its_tensors_as_safetensors(tmp_path: Path) -> None:
    weights = write_adapter(tmp_path, r=8) / "adapter_model.safetensors"
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_model.safetensors; copy the whole"):
        lora_rank(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="pickle only, which runs code"):
        lora_rank(tmp_path)
    weights.write_bytes(b"half")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        lora_rank(tmp_path)


def test_tensors_of_other_modules_than_the_configuration_s_are_refused(tmp_path: Path) -> None:
    named = {"r": 8, "target_modules": ["q_proj", "self_attn.v_proj"]}
    assert lora_rank(write_adapter(tmp_path, "self_attn.q_proj", "self_attn.v_proj", **named)) == 8
    with pytest.raises(CheckpointError, match=r"of c_attn, and .* names q_proj, v_proj"):
        lora_rank(write_adapter(tmp_path, "attn.c_attn", **named))
    assert lora_rank(write_adapter(tmp_path, "c_attn", r=8, target_modules="all-linear")) == 8
