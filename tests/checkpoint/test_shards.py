"""Shards and their index."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from whet.checkpoint.shards import ShardWriter


def test_shards_and_index_hold_every_tensor(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=1000)
    tensors = {f"t{number}": torch.full((100,), float(number)) for number in range(6)}
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.finish()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    assert index["metadata"]["total_size"] == 2400
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])
