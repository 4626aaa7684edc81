"""The folder of a testbed: what is in it, who reads it, and what leaves none behind."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.sizes import Sizes

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import read_facts, tokenizer_difference
from whet.core.errors import CheckpointError, InfeasibleError, StorageError, UsageError
from whet.demo import pair_paths

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lab.testbed import main, read_source, write_model, write_testbed  # noqa: E402

TARGET, DRAFT = pair_paths()
OWN_TARGET = Sizes(hidden=384, layers=6, heads=3, kv_heads=1, intermediate=1024)
OWN_DRAFT = Sizes(hidden=128, layers=2, heads=1, kv_heads=1, intermediate=384)
WIDE_DRAFT = Sizes(hidden=256, layers=3, heads=2, kv_heads=1, intermediate=512)
IDS = torch.arange(6, 70)[None]


def write(out: Path, sizes: Sizes, *, shard_bytes: int = 2**31, source: Path = DRAFT) -> Any:
    order = read_source(source, sizes, role="draft")
    return write_model(order, out, torch.device("cpu"), shard_bytes=shard_bytes)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sharded") / "draft"
    write(out, WIDE_DRAFT, shard_bytes=1_000_000)
    return out


def test_transformers_loads_every_shard_and_hears_the_small_model(sharded: Path) -> None:
    result, info = transformers.AutoModelForCausalLM.from_pretrained(
        sharded, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values())
    expected = transformers.AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32)
    with torch.no_grad():
        logits = expected(IDS).logits
        # bfloat16 norm weights: half a unit in 2^8 each, on logits of about 10.
        assert (result(IDS).logits - logits).abs().max() < 0.02 * logits.abs().max()


def test_facts_of_the_folder_are_the_sizes_asked_for(sharded: Path) -> None:
    facts = read_facts(sharded)
    # By hand: 4096·256 + 256 + 3·(2·256 + 2·256·128·(2+1) + 3·256·512)
    assert facts.parameters == WIDE_DRAFT.parameters() == 1_048_832 + 3 * 590_336
    assert facts.weight_bytes == 2 * facts.parameters
    sizes = (facts.hidden_size, facts.layers, facts.heads, facts.kv_heads, facts.intermediate_size)
    assert sizes == (256, 3, 2, 1, 512)
    assert facts.tied_embeddings
    assert facts.stored.dtype == read_facts(DRAFT).stored.dtype


def test_shards_hold_what_they_may_and_the_index_names_them(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in sharded.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) > 3
    assert index["metadata"]["total_size"] == 2 * WIDE_DRAFT.parameters()
    # The embedding alone is larger than a shard may be, and has one to itself.
    large = [name for name in files if (sharded / name).stat().st_size > 1_010_000]
    assert large == [index["weight_map"]["model.embed_tokens.weight"]]


def test_tokenizer_is_the_pairs_byte_for_byte(sharded: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (sharded / name).read_bytes() == (DRAFT / name).read_bytes()
    assert tokenizer_difference(sharded, TARGET) is None


def test_the_folder_says_that_it_is_a_testbed(sharded: Path) -> None:
    card = (sharded / "MODEL_CARD.md").read_text()
    assert "It does not show how a real model of this size tolerates 4 bits" in card
    mark = json.loads((sharded / "config.json").read_text())["whet_testbed"]
    assert (mark["hidden_size"], mark["num_hidden_layers"]) == (128, 2)
    assert read_facts(sharded).testbed == "the draft of whet's demo pair, widened"
    assert read_facts(DRAFT).testbed is None


def test_the_same_call_writes_the_same_bytes(sharded: Path, tmp_path: Path) -> None:
    write(tmp_path / "again", WIDE_DRAFT, shard_bytes=1_000_000)
    for path in sharded.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_own_sizes_give_the_pairs_own_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write(tmp_path / "same", OWN_DRAFT)
    result = load_file(tmp_path / "same" / "model.safetensors")
    expected = load_file(DRAFT / "model.safetensors")
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[name], expected[name]) for name in expected)


@pytest.mark.parametrize("source", [TARGET, DRAFT], ids=["target", "draft"])
def test_padded_vocabulary_has_no_probability_in_the_pair(tmp_path: Path, source: Path) -> None:
    own = OWN_TARGET if source == TARGET else OWN_DRAFT
    sizes = replace(own, hidden=3 * 128 * own.heads, vocabulary=4224)
    write(tmp_path / "padded", sizes, source=source)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "padded", dtype=torch.bfloat16
    )
    with torch.no_grad():
        logits = model(IDS).logits.float()
    assert logits[..., 4096:].max() < logits[..., :4096].min() - 100
    assert torch.isfinite(logits).all()


def test_a_source_that_is_no_tied_llama(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "untied")
    sizes = replace(OWN_DRAFT, head_dim=64, vocabulary=300)
    with pytest.raises(CheckpointError, match="as the bundled demo pair is"):
        write(tmp_path / "out", sizes, source=tmp_path / "untied")


def make(out: Path, **change: Any) -> Any:
    return write_testbed(out, **{"target": OWN_TARGET, "device": "cpu", **change})


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(UsageError, match="exists and is not empty"):
        make(tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 10**6))
    with pytest.raises(StorageError, match=r"977 KiB free, and the testbed needs"):
        make(tmp_path / "new" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_testbed_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab.widen import Widener

    make_tensor = Widener.make

    def fail(self: Widener, name: str) -> torch.Tensor:
        if name == "model.norm.weight":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return make_tensor(self, name)

    monkeypatch.setattr(Widener, "make", fail)
    with pytest.raises(InfeasibleError, match="does not fit on cpu"):
        make(tmp_path / "out", draft=OWN_DRAFT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["tpu", "cuda:99"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str) -> None:
    with pytest.raises(UsageError, match=r"device|GPUs"):
        make(tmp_path / "out", device=device)


def test_command_writes_the_pair_and_says_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--hidden", "384", "--layers", "6", "--heads", "3", "--kv-heads", "1"]
    words = [*sizes, "--intermediate", "1024", "--draft", "128,2,1,1,384", "--device", "cpu"]
    assert main(["7b", str(tmp_path / "bed"), *words]) == 0
    out = capsys.readouterr().out
    assert f"--model {tmp_path}/bed/target --draft {tmp_path}/bed/draft" in out
    assert read_facts(tmp_path / "bed" / "target").parameters == 11_015_040
    assert read_facts(tmp_path / "bed" / "draft").parameters == 950_912


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["7c"], "unknown shape '7c'"),
        (["7b", "--hidden", "4000"], "hidden size of the target must be a multiple of 128"),
        (["7b", "--layers", "4"], "layers 4 is below the demo model's own 6"),
        (["7b", "--layers", "-1"], "layers -1 is below the demo model's own 6"),
        (["7b", "--vocab", "2000"], "vocabulary 2000 is below"),
    ],
)
def test_command_refuses_sizes_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main([*words, str(tmp_path / "bed")]) == UsageError.exit_code
    assert told in capsys.readouterr().err
    assert not (tmp_path / "bed").exists()
