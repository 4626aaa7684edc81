"""Two tokenizers are one only if every token has one id; a difference is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_json, write_tokenizer
from whet.checkpoint import tokenizer_difference, tokenizer_identity
from whet.checkpoint.tokenizer import load_tokenizer
from whet.core.errors import CheckpointError

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    write_tokenizer(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b"


def edit(path: Path, change: Edit, name: str = "tokenizer.json") -> None:
    data = json.loads((path / name).read_text())
    change(data)
    write_json(path / name, data)


def compare(a: Path, b: Path) -> str | None:
    """The difference, once it agrees with the hashes."""
    difference = tokenizer_difference(a, b)
    same = tokenizer_identity(a).sha256 == tokenizer_identity(b).sha256
    assert same == (difference is None)
    return difference


def test_a_copy_is_the_same(pair: tuple[Path, Path]) -> None:
    assert compare(*pair) is None


def test_identity_of_the_tiny_tokenizer(pair: tuple[Path, Path]) -> None:
    identity = tokenizer_identity(pair[0])
    assert identity.vocab_size == 300
    assert identity.bos_token_id == 0
    assert identity.eos_token_ids == (1,)
    assert identity.chat_template_sha256 is not None


def test_one_pair_of_tokens_swapped(pair: tuple[Path, Path]) -> None:
    vocab = json.loads((pair[0] / "tokenizer.json").read_text())["model"]["vocab"]
    token = {index: token for token, index in vocab.items()}

    def swap(data: dict[str, Any]) -> None:
        data["model"]["vocab"] |= {token[17]: 18, token[18]: 17}

    edit(pair[1], swap)
    assert compare(*pair) == (
        f"the id of token {token[17]!r} is 17 in the target and 18 in the draft (2 differ)"
    )


def test_one_token_less(pair: tuple[Path, Path]) -> None:
    def drop(data: dict[str, Any]) -> None:
        vocab = data["model"]["vocab"]
        del vocab[max(vocab, key=vocab.__getitem__)]
        data["model"]["merges"].pop()

    edit(pair[1], drop)
    assert "is 299 in the target and missing in the draft" in str(compare(*pair))
    assert "is missing in the original and 299 in the copy" in str(
        tokenizer_difference(pair[1], pair[0], names=("original", "copy"))
    )


def test_merges_as_strings_and_as_pairs_are_the_same(pair: tuple[Path, Path]) -> None:
    def to_strings(data: dict[str, Any]) -> None:
        merges = data["model"]["merges"]
        assert isinstance(merges[0], list)
        data["model"]["merges"] = [" ".join(merge) for merge in merges]

    edit(pair[1], to_strings)
    assert compare(*pair) is None


def test_another_order_of_merges(pair: tuple[Path, Path]) -> None:
    def reverse(data: dict[str, Any]) -> None:
        data["model"]["merges"].reverse()

    edit(pair[1], reverse)
    assert str(compare(*pair)).startswith("merge 0 is ")


def test_an_added_token_with_another_flag(pair: tuple[Path, Path]) -> None:
    def plain(data: dict[str, Any]) -> None:
        data["added_tokens"][1]["special"] = False

    edit(pair[1], plain)
    assert compare(*pair) == (
        "the flags of added token '<|end|>' are 'special' in the target and 'plain' in the draft"
    )


STEPS: dict[str, Any] = {
    "normalizer": {"type": "NFKC"},
    "pre_tokenizer": {"type": "Whitespace"},
    "decoder": {"type": "Fuse"},
}


@pytest.mark.parametrize("step", STEPS)
def test_another_step_around_the_vocabulary_is_another_tokenizer(
    pair: tuple[Path, Path], step: str
) -> None:
    edit(pair[1], lambda data: data.update({step: STEPS[step]}))
    assert str(compare(*pair)).startswith(f"{step} is ")


def test_a_default_that_an_older_file_leaves_out_is_no_difference(pair: tuple[Path, Path]) -> None:
    older = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    edit(pair[0], lambda data: data.update(pre_tokenizer=older))
    edit(pair[1], lambda data: data.update(pre_tokenizer={**older, "use_regex": True}))
    assert compare(*pair) is None


def served(a: Path, b: Path) -> str | None:
    return tokenizer_difference(a, b, names=("target", "copy"), serving=True)


def test_another_end_of_text_suits_a_draft_and_no_copy(pair: tuple[Path, Path]) -> None:
    edit(pair[1], lambda data: data.update(eos_token="<|start|>"), "tokenizer_config.json")
    assert compare(*pair) is None
    assert served(*pair) == "eos_token is '<|end|>' in the target and '<|start|>' in the copy"


def test_another_template_or_post_processor_suits_no_copy(pair: tuple[Path, Path]) -> None:
    post = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    assert served(*pair) is None
    edit(pair[1], lambda data: data.update(post_processor=post))
    assert compare(*pair) is None
    assert str(served(*pair)).startswith("post_processor is ")
    shutil.copy(pair[0] / "tokenizer.json", pair[1])
    (pair[1] / "chat_template.jinja").write_text("other")
    assert served(*pair) == "the target and the copy have different chat templates"


def test_template_and_padding_do_not_count(pair: tuple[Path, Path]) -> None:
    edit(
        pair[1],
        lambda data: data.update(chat_template="other", pad_token="<|end|>"),
        "tokenizer_config.json",
    )
    assert compare(*pair) is None
    one, two = (tokenizer_identity(path) for path in pair)
    assert one.chat_template_sha256 != two.chat_template_sha256


def test_the_template_file_goes_before_the_config(pair: tuple[Path, Path]) -> None:
    (pair[0] / "chat_template.jinja").write_text("{{ messages }}")
    edit(pair[1], lambda data: data.update(chat_template="{{ messages }}"), "tokenizer_config.json")
    one, two = (tokenizer_identity(path) for path in pair)
    assert one.chat_template_sha256 == two.chat_template_sha256


def test_all_ends_of_an_answer(pair: tuple[Path, Path]) -> None:
    write_json(pair[0] / "generation_config.json", {"eos_token_id": [7, 1]})
    (pair[1] / "generation_config.json").unlink()
    assert tokenizer_identity(pair[0]).eos_token_ids == (1, 7)
    assert tokenizer_identity(pair[1]).eos_token_ids == (1,)


def test_unigram_ids_are_places(tmp_path: Path) -> None:
    data = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5], ["b", -2.0]]}}
    write_json(tmp_path / "tokenizer.json", data)
    assert tokenizer_identity(tmp_path).vocab_size == 3


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, r"has no tokenizer\.json"),
        ({"tokenizer.model": ""}, r"has no tokenizer\.json; write it with AutoTokenizer"),
        ({"tokenizer.json": "version https://git-lfs.github.com/spec/v1\n"}, "git-LFS"),
        ({"tokenizer.json": "{}"}, "not a tokenizer"),
        ({"tokenizer.json": '{"model": {"vocab": 3}}'}, "not a tokenizer"),
    ],
)
def test_broken_tokenizers(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=said):
        tokenizer_identity(tmp_path)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer"])
def test_the_class_is_the_one_that_auto_takes(pair: tuple[Path, Path], name: str) -> None:
    from transformers import AutoTokenizer

    edit(pair[0], lambda data: data.update(tokenizer_class=name), "tokenizer_config.json")
    own = load_tokenizer(pair[0])
    auto = AutoTokenizer.from_pretrained(str(pair[0]), local_files_only=True)
    assert type(own) is type(auto)
    text = "Hello world"
    assert own.encode(text) == auto.encode(text)


def test_a_tokenizer_newer_than_the_library(pair: tuple[Path, Path]) -> None:
    """tokenizers raises the class Exception for a model that it does not know."""
    file = pair[0] / "tokenizer.json"
    data = json.loads(file.read_text())
    write_json(file, data | {"model": {"type": "Future", "pieces": []}})
    with pytest.raises(CheckpointError, match=r"cannot be read \(.*check that tokenizer\.json"):
        load_tokenizer(pair[0])


def test_the_end_of_an_answer_in_a_text_config(pair: tuple[Path, Path]) -> None:
    """Multimodal models keep it there, if generation_config.json is missing."""
    (pair[0] / "generation_config.json").unlink()
    write_json(pair[0] / "config.json", {"text_config": {"eos_token_id": [7, 3]}})
    assert tokenizer_identity(pair[0]).eos_token_ids == (3, 7)
