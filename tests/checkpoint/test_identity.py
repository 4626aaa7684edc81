"""The weights' hash changes when the weights do, and only then."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.checkpoint_factory import write_json, write_tiny_llama
from whet.checkpoint import hash_weights, read_headers


def digest(path: Path, **options: int) -> str:
    return hash_weights(read_headers(path), **options)


def test_equal_weights_have_equal_hashes_however_they_are_spread(tmp_path: Path) -> None:
    one = write_tiny_llama(tmp_path / "one")
    tensors = load_file(one / "model.safetensors")
    two = tmp_path / "two"
    two.mkdir()
    names = sorted(tensors)
    shards = {"a.safetensors": names[10:], "b.safetensors": names[:10]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, two / file, metadata={"made": "later"})
    weight_map = {name: file for file, part in shards.items() for name in part}
    write_json(two / "model.safetensors.index.json", {"weight_map": weight_map})
    assert digest(one) == digest(two)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.down_proj.weight"])
def test_one_element_changes_the_whole_hash(tmp_path: Path, name: str) -> None:
    path = write_tiny_llama(tmp_path)
    before = digest(path)
    tensors = load_file(path / "model.safetensors")
    tensors[name][3, 5] += 1
    save_file(tensors, path / "model.safetensors")
    assert digest(path) != before


def test_a_tensor_under_another_name_changes_it(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path)
    before = digest(path)
    tensors = load_file(path / "model.safetensors")
    up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    tensors[up], tensors[gate] = tensors[gate], tensors[up]
    save_file(tensors, path / "model.safetensors")
    assert digest(path) != before


def test_a_sample_sees_a_trained_tensor(tmp_path: Path) -> None:
    """A tensor of 2 MiB is sampled; a step of training moves every element a little."""
    weights = np.random.default_rng(0).standard_normal((1024, 1024)).astype("float16")
    save_file({"w": weights}, tmp_path / "model.safetensors")
    before = digest(tmp_path, whole_up_to_bytes=0)
    save_file({"w": weights * np.float16(1.01)}, tmp_path / "model.safetensors")
    assert digest(tmp_path, whole_up_to_bytes=0) != before


@pytest.mark.parametrize("place", [0, -1])
def test_a_sample_holds_both_ends(tmp_path: Path, place: int) -> None:
    weights = np.zeros(1024 * 1024, "float16")
    save_file({"w": weights}, tmp_path / "model.safetensors")
    before = digest(tmp_path, whole_up_to_bytes=0)
    weights[place] = 1
    save_file({"w": weights}, tmp_path / "model.safetensors")
    assert digest(tmp_path, whole_up_to_bytes=0) != before


def test_many_large_tensors_are_sampled_with_fewer_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads are bounded over all; a change of every element is seen all the same."""
    monkeypatch.setattr("whet.checkpoint.headers.MAX_READS", 40)
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((512, 512)).astype("float16") for i in range(10)}
    save_file(weights, tmp_path / "model.safetensors")
    before = digest(tmp_path, whole_up_to_bytes=0)
    monkeypatch.setattr("whet.checkpoint.headers.MAX_READS", 10)
    assert digest(tmp_path, whole_up_to_bytes=0) != before
    for name in ("w0", "w9"):
        changed = weights | {name: weights[name] * np.float16(1.01)}
        save_file(changed, tmp_path / "model.safetensors")
        assert digest(tmp_path, whole_up_to_bytes=0) != before


def test_a_sample_of_all_pages_has_the_hash_of_earlier_versions(tmp_path: Path) -> None:
    """Kept runs compare with it: 16 pages of each tensor, after the word ``sampled``."""
    weights = np.arange(1024 * 1024, dtype="float16")
    save_file({"w": weights}, tmp_path / "model.safetensors")
    raw, size = weights.tobytes(), weights.nbytes
    pages = hashlib.sha256()
    for index in range(16):
        start = round(index * (size - 16384) / 15)
        pages.update(raw[start : start + 16384])
    total = hashlib.sha256(b"sampled" + b"w\0F16\0(1048576,)\0" + pages.digest())
    assert digest(tmp_path, whole_up_to_bytes=0) == total.hexdigest()
