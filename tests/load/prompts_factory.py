"""A small tokenizer and a pool of prompts, written to a folder."""

from __future__ import annotations

import json
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
)


def write_tokenizer(folder: Path, *, template: str | None = CHAT_TEMPLATE) -> Path:
    """A byte-level tokenizer: one token a byte, so that lengths can be counted by hand."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, additional_special_tokens=special)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return folder


def write_pool(path: Path, *, shorts: int = 4, longs: int = 4, users: int = 8) -> Path:
    """``shorts`` system prompts of 64 bytes, ``longs`` of 256, ``users`` turns of 40."""
    lines = [("system_short", f"{i:02d}" * 32) for i in range(shorts)]
    lines += [("system_long", f"{i:02d}xy" * 64) for i in range(longs)]
    lines += [("user", f"question {i:02d} " + "w " * 14) for i in range(users)]
    path.write_text("".join(json.dumps({"kind": k, "text": t}) + "\n" for k, t in lines))
    return path
