"""Data files and a tokenizer for the quality tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }} {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """One token a byte, ``<s>`` and ``</s>`` added: a text's length is its token count."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    return folder


def task_row(index: int, **changes: Any) -> dict[str, Any]:
    row = {
        "id": f"q{index}",
        "task": "sums",
        "messages": [{"role": "user", "content": f"question {index}"}],
        "expected": str(index),
        "scorer": "number",
        "max_tokens": 8,
    }
    return row | changes
