"""Token ids of prompts, as a server of the same folder reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from whet.checkpoint.encoder import Ids, PromptEncoder, load_encoder
from whet.core.errors import CheckpointError, UsageError
from whet.demo import pair_paths
from whet.requests import LoggedRequest

TARGET = pair_paths()[0]
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "The cat sat on the mat.\n\nThe dog  sat \n on 12 345 mats.\n\n\n    if x:\n        y()\n",
    "a\nb\nc\n\nd\n e\n  f \n\n g.\n}\n{\n- one\n- two\n",
] * 4
SPECIAL = ["<|bos|>", "<|end|>", "<|user|>"]
TEXTS = st.lists(
    st.sampled_from(["the", "cat", "mat.", " ", "  ", "\n", "\n\n", "\t", "12", "{", "}", "\u4f60",
                     "\u00a0", "<|end|>", "<|user|>", "<|a tool|>", "<|", "\r\n", "\u3000",
                     "e\u0301"]),
    max_size=16,
).map("".join)  # fmt: skip


def byte_level(split: str | None) -> Tokenizer:
    """A BPE as GPT-2's (None) or as Llama 3's, whose merges hold runs of line ends and blanks."""
    tokenizer = Tokenizer(models.BPE())
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    """As SentencePiece's, which puts a mark before a text, or before its first part only."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def greedy_specials() -> Tokenizer:
    """Special tokens that take in the white space beside them, as Phi's do."""
    tokenizer = byte_level(LLAMA)
    tokenizer.add_special_tokens(
        [
            AddedToken("<|end|>", rstrip=True),
            AddedToken("<|user|>", lstrip=True),
            AddedToken("<|a tool|>"),
        ]
    )
    return tokenizer


def encoder_of(tokenizer: Tokenizer, template: str | None = None) -> PromptEncoder:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|bos|>")
    return PromptEncoder(wrapped, chat_template=template)


CASES: dict[str, Any] = {
    "demo": lambda: Tokenizer.from_file(str(TARGET / "tokenizer.json")),
    "llama3": lambda: byte_level(LLAMA),
    "greedy specials": greedy_specials,
    "metaspace first": lambda: metaspace("first"),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[PromptEncoder, Tokenizer]:
    make = CASES[request.param]
    return encoder_of(make()), make()


@given(texts=st.lists(TEXTS, max_size=4))
@settings(deadline=None, max_examples=20)
def test_the_ids_are_those_of_the_library(
    case: tuple[PromptEncoder, Tokenizer], texts: list[str]
) -> None:
    encoder, tokenizer = case
    true = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert [ids.tolist() for ids in encoder.encode_many(texts)] == true


def ids_of(encoder: PromptEncoder, request: LoggedRequest) -> Ids:
    (ids,) = encoder.ids_many([request])
    assert isinstance(ids, np.ndarray)
    return ids


def test_a_plain_prompt_has_what_the_tokenizer_adds() -> None:
    tokenizer = byte_level(LLAMA)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|end|>", special_tokens=[("<|bos|>", 0), ("<|end|>", 1)]
    )
    encoder = encoder_of(tokenizer)
    for text in ("the cat\n\nsat", "", "a<|user|>b"):
        inner = tokenizer.encode(text, add_special_tokens=False).ids
        ids = ids_of(encoder, LoggedRequest(place="", prompt=text))
        assert ids.tolist() == [0, *inner, 1]
        assert ids.dtype == np.int32


def test_a_chat_has_nothing_added() -> None:
    tokenizer = byte_level(LLAMA)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 0)]
    )
    encoder = encoder_of(tokenizer, "{{ messages[0].content }}")
    told = LoggedRequest(place="", messages=({"role": "user", "content": "the <|end|> cat"},))
    assert encoder.text(told) == "the <|end|> cat"
    assert ids_of(encoder, told).tolist() == tokenizer.encode(
        "the <|end|> cat", add_special_tokens=False
    ).ids  # fmt: skip


def test_a_tokenizer_s_own_truncation_is_not_a_server_s() -> None:
    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    text = "many words that stand one after another"
    plain = Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode(text).ids
    assert encoder_of(tokenizer).encode(text).tolist() == plain


def test_empty_texts_and_token_ids() -> None:
    encoder = load_encoder(TARGET)
    assert encoder.encode("").tolist() == []
    assert ids_of(encoder, LoggedRequest(place="", prompt="")).tolist() == []
    assert encoder.text(LoggedRequest(place="", prompt="as it is")) == "as it is"
    ids = ids_of(encoder, LoggedRequest(place="", prompt_token_ids=(5, 6, 7)))
    assert (ids.tolist(), ids.dtype) == ([5, 6, 7], np.int32)
    for own in (4096, 128_255, 2**31):
        with pytest.raises(UsageError, match=rf"log:7: its token id {own:,} is not one of this"):
            encoder.ids_many([LoggedRequest(place="log:7", prompt_token_ids=(5, own))])


def test_ids_are_decoded_with_special_tokens() -> None:
    encoder = load_encoder(TARGET)
    text = "<|system|>Hello there,\n  you.<|end|>"
    assert encoder.decode(encoder.encode(text)) == text
    assert encoder.decode(np.array([70_000], dtype=np.int32)) == ""


def write_tokenizer(folder: Path, names: Iterable[str]) -> Path:
    for name in names:
        (folder / name).write_bytes((TARGET / name).read_bytes())
    return folder


def test_a_folder_s_own_template_and_one_in_its_place(tmp_path: Path) -> None:
    chat = LoggedRequest(place="", messages=({"role": "user", "content": "x"},))
    assert load_encoder(TARGET).text(chat) == "<|bos|><|user|>x<|end|><|assistant|>"
    path = tmp_path / "chat.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert load_encoder(TARGET, chat_template=path).text(chat) == "[x]"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"{% for %}"])
def test_a_template_that_is_none_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "chat.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="the chat template"):
        load_encoder(TARGET, chat_template=path)


def test_a_folder_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"check that tokenizer\.json is there"):
        load_encoder(tmp_path)
    write_tokenizer(tmp_path, ["config.json", "tokenizer_config.json"])
    with pytest.raises(CheckpointError):
        load_encoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"torn')
    with pytest.raises(CheckpointError):
        load_encoder(tmp_path)


def test_a_folder_without_a_template_takes_plain_prompts(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, ["tokenizer.json"])
    config = json.loads((TARGET / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    encoder = load_encoder(tmp_path)
    assert len(ids_of(encoder, LoggedRequest(place="", prompt="plain")))
    with pytest.raises(UsageError, match="--chat-template"):
        encoder.text(LoggedRequest(place="", messages=({"role": "user", "content": "x"},)))


def test_variables_are_of_every_request_that_has_none_of_its_own() -> None:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=byte_level(LLAMA), bos_token="<|bos|>")
    wrapped.chat_template = "{{ mood }}"
    encoder = PromptEncoder(wrapped, variables={"mood": "a"})
    chat = LoggedRequest(place="", messages=({"role": "user", "content": "x"},))
    assert encoder.text(chat) == "a"
    assert encoder.text(replace(chat, chat_template_kwargs={"mood": "b"})) == "b"
