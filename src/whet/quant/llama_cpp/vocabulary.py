"""A byte-level BPE tokenizer.json as the metadata of a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.tokenizer import read_chat_template, read_vocabulary, tokenizer_identity

_LLAMA_3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5
"""``LLAMA_TOKEN_TYPE_…``."""


def tokenizer_problem(folder: Path) -> str | None:
    """Why whet cannot write this tokenizer into a GGUF file; None if it can."""
    data = read_json_if_any(folder / "tokenizer.json")
    kind = (data.get("model") or {}).get("type")
    if kind != "BPE":
        return f"its tokenizer is {kind or 'not tokenizer.json'}, and whet writes byte-level BPE"
    if data.get("normalizer") is not None or pre_tokenizer(folder) is None:
        return "its tokenizer splits text in a way that whet has no name of llama.cpp's for"
    return None


def pre_tokenizer(folder: Path) -> str | None:
    """llama.cpp's name of the way in which text is split before BPE; None if unknown.

    The names are those of ``llama-vocab.cpp``; a server's ``/tokenize`` is compared in any case.
    """
    steps = json.loads(read_vocabulary(folder).steps["pre_tokenizer"]) or {}
    parts = steps.get("pretokenizers", [steps])
    kinds = [part.get("type") for part in parts]
    if parts[-1].get("type") != "ByteLevel" or parts[-1].get("add_prefix_space"):
        return None
    if kinds == ["ByteLevel"]:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and parts[0].get("pattern") == {"Regex": _LLAMA_3}:
        return "llama-bpe"
    return None


def add_vocabulary(writer: Any, folder: Path, *, size: int) -> None:
    """Write tokens, merges, roles and the chat template; ids beyond the vocabulary are padding."""
    vocabulary, identity = read_vocabulary(folder), tokenizer_identity(folder)
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [_UNUSED] * size
    for token, number in vocabulary.ids.items():
        tokens[number], types[number] = token, _NORMAL
    for token, flags in vocabulary.added.items():
        types[vocabulary.ids[token]] = _CONTROL if "special" in flags.split() else _USER
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(folder))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(list(vocabulary.merges))
    # whet's prompts, and the template's, have their begin token already.
    writer.add_add_bos_token(False)
    if identity.bos_token_id is not None:
        writer.add_bos_token_id(identity.bos_token_id)
    if identity.eos_token_ids:
        writer.add_eos_token_id(identity.eos_token_ids[0])
    if (template := read_chat_template(folder)) is not None:
        writer.add_chat_template(template)
