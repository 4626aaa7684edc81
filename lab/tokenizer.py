"""The tokenizer of target and draft: byte-level BPE, 4096 pieces, every digit its own piece."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lab.text import Message, documents

VOCABULARY = 4096
PAD, BOS, END, SYSTEM, USER, ASSISTANT = (
    "<|pad|>",
    "<|bos|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)
SPECIAL_TOKENS = (PAD, BOS, END, SYSTEM, USER, ASSISTANT)
PAD_ID, BOS_ID, END_ID = 0, 1, 2
ROLE_IDS = {"system": 3, "user": 4, "assistant": 5}
ROLE_TOKENS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(seed: int, count: int) -> Tokenizer:
    """A tokenizer trained on ``count`` training chats."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, count), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that transformers and vLLM read."""
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        **names,
        "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
        "chat_template": CHAT_TEMPLATE,
    }
    specials = {**names, "additional_special_tokens": [SYSTEM, USER, ASSISTANT]}
    _write(folder / "tokenizer_config.json", config)
    _write(folder / "special_tokens_map.json", specials)


def render(messages: Iterable[Message], *, reply_next: bool) -> str:
    """A chat as the model reads it; the same string as the chat template gives."""
    text = BOS + "".join(f"{ROLE_TOKENS[item.role]}{item.content}{END}" for item in messages)
    return text + ASSISTANT if reply_next else text


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _texts(seed: int, count: int) -> Iterator[str]:
    for document in documents(seed, count, "train"):
        for message in document.messages():
            yield message.content


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
