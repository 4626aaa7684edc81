"""The rank of an adapter, and folders that hold none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whet.checkpoint import lora_rank
from whet.core.errors import CheckpointError


def adapter(folder: Path, **config: object) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return folder


def test_the_rank_is_r(tmp_path: Path) -> None:
    assert lora_rank(adapter(tmp_path, r=16)) == 16


@pytest.mark.parametrize(
    ("pattern", "rank"), [({"q_proj": 32, "k_proj": 4}, 32), ({"q_proj": 2}, 8), ({}, 8), (None, 8)]
)
def test_a_module_of_a_larger_rank_decides(tmp_path: Path, pattern: object, rank: int) -> None:
    assert lora_rank(adapter(tmp_path, r=8, rank_pattern=pattern)) == rank


@pytest.mark.parametrize("r", [None, 0, -1, "8", 8.0, True])
def test_a_rank_that_is_no_count_is_refused(tmp_path: Path, r: object) -> None:
    with pytest.raises(CheckpointError, match="save the adapter again"):
        lora_rank(adapter(tmp_path, r=r))


@pytest.mark.parametrize("pattern", [{"q_proj": "32"}, [32]])
def test_a_pattern_without_ranks_is_refused(tmp_path: Path, pattern: object) -> None:
    with pytest.raises(CheckpointError, match="save the adapter again"):
        lora_rank(adapter(tmp_path, r=8, rank_pattern=pattern))


def test_a_folder_without_an_adapter_says_which_folder_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="save_pretrained"):
        lora_rank(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[8]")
    with pytest.raises(CheckpointError, match="does not hold a JSON object"):
        lora_rank(tmp_path)
