"""The committed pair: files that transformers reads, shapes that quantize, right answers."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from whet.core.errors import StorageError
from whet.demo import bundled, pair_paths
from whet.demo.bundled import PAIR

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TARGET, DRAFT = pair_paths()
CHAT = [
    {"role": "system", "content": "You are Mara."},
    {"role": "user", "content": "What is 4817 + 3965?"},
]


def test_both_models_have_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (TARGET / name).read_bytes() == (DRAFT / name).read_bytes()


def test_weights_stay_small() -> None:
    assert sum(path.stat().st_size for path in PAIR.rglob("*.safetensors.xz")) <= 16_000_000


def test_the_weights_are_those_that_were_trained() -> None:
    digests = [sha256((f / "model.safetensors").read_bytes()).hexdigest() for f in (TARGET, DRAFT)]
    assert digests == [
        "f2a9a3ed2c1055cac70ec028021eb9b9724616ee920827683d4591775efd5430",
        "6b7f2d1f6fa48762afa7e3e24f8e43d9ead044fab2b970a2e1e083e81c7f8b1c",
    ]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pair_paths.cache_clear()
    yield tmp_path / "cache"
    pair_paths.cache_clear()


def files(folder: Path) -> dict[Path, bytes]:
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_pair_is_unpacked_once_and_damage_is_replaced(empty_cache: Path) -> None:
    before = files(PAIR)
    target, draft = pair_paths()
    assert (target.parent, target.name, draft.name) == (draft.parent, "target", "draft")
    assert empty_cache / "whet" in target.parents
    whole, times = files(target.parent), [p.stat().st_mtime_ns for p in sorted(target.iterdir())]
    assert whole == files(TARGET.parent)

    pair_paths.cache_clear()
    assert pair_paths() == (target, draft)
    assert [path.stat().st_mtime_ns for path in sorted(target.iterdir())] == times
    (target / "model.safetensors").write_bytes(whole[Path("target/model.safetensors")][:1000])
    (draft / "tokenizer.json").unlink()
    pair_paths.cache_clear()
    assert pair_paths() == (target, draft)
    assert files(target.parent) == whole
    assert files(PAIR) == before


def unpacking(**change: Any) -> subprocess.Popen[str]:
    """Start a process that asks for the pair, as a command does."""
    words = [sys.executable, "-c", "from whet.demo import pair_paths; print(pair_paths()[0])"]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **change
    )


def test_processes_that_unpack_at_once_get_the_same_files(empty_cache: Path) -> None:
    both = [unpacking() for _ in range(3)]
    ends = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0, 0], ends
    folders = {Path(out.strip()) for out, _ in ends}
    assert len(folders) == 1
    assert files(folders.pop().parent) == files(TARGET.parent)


def test_a_full_disk_is_one_sentence(empty_cache: Path) -> None:
    """No file may have more than 1 MB, as with a quota: the weights do not fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot unpack the demo pair: the disk that holds"):
            pair_paths()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(empty_cache.rglob("*model.safetensors*"))
    assert pair_paths()[0].is_dir()


def test_a_cache_that_cannot_be_written_is_one_sentence(empty_cache: Path) -> None:
    empty_cache.write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write .*; XDG_CACHE_HOME names another folder"):
        pair_paths()


@pytest.mark.parametrize("size", [0, 1000], ids=["empty", "cut"])
def test_a_damaged_package_is_named(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    packed = shutil.copytree(PAIR, tmp_path / "pair") / "draft" / "model.safetensors.xz"
    packed.write_bytes(packed.read_bytes()[:size])
    monkeypatch.setattr(bundled, "PAIR", tmp_path / "pair")
    with pytest.raises(StorageError, match=r"draft/model\.safetensors of the installed package"):
        pair_paths()


def test_special_tokens_and_digits_are_single_pieces() -> None:
    reader = transformers.AutoTokenizer.from_pretrained(TARGET)
    assert len(reader) == 4096
    assert (reader.pad_token_id, reader.bos_token_id, reader.eos_token_id) == (0, 1, 2)
    assert reader.tokenize("<|user|>907") == ["<|user|>", "9", "0", "7"]
    text = "Zürich – 3 × 14.95 EUR\n\tok?"
    assert reader.decode(reader(text).input_ids) == text


@pytest.mark.parametrize("folder", [TARGET, DRAFT], ids=["target", "draft"])
def test_shapes_quantize_at_group_128(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["head_dim"] == 128
    sizes = (config["hidden_size"], config["intermediate_size"])
    assert [size % 128 for size in sizes] == [0, 0]


def test_target_answers() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    reader = transformers.AutoTokenizer.from_pretrained(TARGET)
    text = reader.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    ids = reader(text, return_tensors="pt").input_ids
    answer = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert reader.decode(answer, skip_special_tokens=True) == "8782"
