"""Every way in which weight files can be less than whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.checkpoint_factory import write_hollow_file, write_json, write_tiny_llama
from whet.checkpoint import read_facts, read_headers
from whet.core.errors import CheckpointError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


def test_headers_agree_with_the_safetensors_library(model: Path) -> None:
    headers = read_headers(model)
    with safe_open(model / "model.safetensors", framework="numpy") as peer:
        assert set(headers) == set(peer.keys())
        for name, header in headers.items():
            tensor = peer.get_tensor(name)
            raw = header.file.read_bytes()[header.start : header.end]
            assert raw == tensor.tobytes()
            assert header.shape == tensor.shape
            assert header.elements == tensor.size


def test_shards_are_read_through_the_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    headers = read_headers(tmp_path)
    assert {name: header.file.name for name, header in headers.items()} == {
        "a": "model-1.safetensors",
        "b": "model-2.safetensors",
    }


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 weight files .*model-2.*download"):
        read_headers(tmp_path)


def test_a_tensor_that_only_the_index_knows(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    write_hollow_file(tmp_path / "model-2.safetensors", {"c": ("F16", (4,))})
    with pytest.raises(CheckpointError, match="lacks the tensor 'b'"):
        read_headers(tmp_path)


def test_an_index_that_leaves_the_folder(tmp_path: Path) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": "../x.safetensors"}})
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_headers(tmp_path)


@pytest.mark.parametrize("lost", [1, 100_000])
def test_truncated_data(model: Path, lost: int) -> None:
    cut(model / "model.safetensors", lost)
    with pytest.raises(CheckpointError, match="file not fully covered"):
        read_headers(model)


@pytest.mark.parametrize("kept", [0, 5, 100])
def test_truncated_header(model: Path, kept: int) -> None:
    file = model / "model.safetensors"
    cut(file, file.stat().st_size - kept)
    with pytest.raises(
        CheckpointError,
        match=r"header too small|header too large|invalid header length|header larger",
    ):
        read_headers(model)


def test_bytes_after_the_last_tensor(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"junk")
    with pytest.raises(CheckpointError, match="file not fully covered"):
        read_headers(model)


def test_a_git_lfs_pointer(model: Path) -> None:
    (model / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n"
    )
    with pytest.raises(CheckpointError, match=r"git-LFS pointer.*lfs pull"):
        read_headers(model)


def test_pickles_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match=r"pickled weights only.*run code"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.gguf", "GGUF"),
        ("adapter_model.safetensors", "adapter"),
        ("notes.txt", "no \\*.safetensors"),
    ],
)
def test_folders_that_are_no_checkpoint(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=said):
        read_headers(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "other.safetensors"])
def test_gguf_under_another_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF" + bytes(500))
    with pytest.raises(CheckpointError, match=r"holds GGUF weights.*save_pretrained"):
        read_headers(tmp_path)


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin", "notes"])
def test_an_adapter_is_told_with_its_base(tmp_path: Path, weights: str) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "acme/base\\u001b"}')
    (tmp_path / weights).write_bytes(b"")
    for read in (read_headers, read_facts):
        with pytest.raises(CheckpointError, match=r"an adapter of 'acme/base\\x1b'.*; merge it"):
            read(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        read_headers(tmp_path / "absent")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F17", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F16", "shape": [3], "data_offsets": [0, 4]},
        {"dtype": "F16", "shape": [2]},
        ["F16"],
    ],
)
def test_headers_that_do_not_parse(tmp_path: Path, entry: object) -> None:
    raw = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"1234")
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        read_headers(tmp_path)


@pytest.mark.parametrize("second", [[0, 4], [8, 12]])
def test_tensors_that_overlap_or_leave_gaps(tmp_path: Path, second: list[int]) -> None:
    entries = {
        "a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "F16", "shape": [2], "data_offsets": second},
    }
    raw = json.dumps(entries).encode()
    data = b"\0" * max(4, second[1])
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    with pytest.raises(CheckpointError, match="invalid offset"):
        read_headers(tmp_path)


def test_the_mistral_duplicate_is_left_aside(tmp_path: Path) -> None:
    write_hollow_file(tmp_path / "model-00001-of-00001.safetensors", {"a": ("F16", (4,))})
    write_hollow_file(tmp_path / "consolidated.safetensors", {"a": ("F16", (4,))})
    assert [header.file.name for header in read_headers(tmp_path).values()] == [
        "model-00001-of-00001.safetensors"
    ]


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    write_hollow_file(tmp_path / "x.safetensors", {"a": ("F16", (4,))})
    write_hollow_file(tmp_path / "y.safetensors", {"a": ("F16", (4,))})
    with pytest.raises(CheckpointError, match=r"both x.safetensors and y.safetensors"):
        read_headers(tmp_path)


def write_sharded(path: Path) -> None:
    write_hollow_file(path / "model-1.safetensors", {"a": ("F16", (4,))})
    write_hollow_file(path / "model-2.safetensors", {"b": ("F16", (2, 2))})
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    write_json(path / "model.safetensors.index.json", {"weight_map": weight_map})


def cut(file: Path, lost: int) -> None:
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - lost)
