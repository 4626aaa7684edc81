"""Faulty copies of a good checkpoint folder: a copy, one planted fault, nothing else.

Each is a mistake that people make with checkpoints; the quality gate has to find it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.checkpoint import read_headers
from whet.checkpoint.files import read_json, read_json_if_any
from whet.core.errors import UsageError

Change = Callable[[Tensor], Tensor]

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_FLOATS: Final = frozenset({"F16", "BF16", "F32"})
_MATRIX: Final = 2
_COMMON: Final = tuple("1205346789etaoinsrhl")
"""Tokens that most vocabularies have and most answers hold: digits, then frequent letters."""

_TOKENIZER: Final = "tokenizer.json"


def scale_layer(source: Path, out: Path, layer: int, factor: float = 1.05) -> Path:
    """Every linear weight of one decoder layer times ``factor``, rounded to its own dtype.

    A linear of a compressed-tensors folder has its ``weight_scale`` multiplied, a 16-bit one its
    weight. ``UsageError`` where the folder has no such layer.
    """
    headers = read_headers(source)
    inside = {
        name: header
        for name, header in headers.items()
        if (match := _LAYER.search(name)) and int(match[1]) == layer
    }
    changes: dict[str, Change] = {}
    for name, header in inside.items():
        module, _, part = name.rpartition(".")
        plain = part == "weight" and len(header.shape) == _MATRIX and header.dtype in _FLOATS
        if part == "weight_scale" or (plain and f"{module}.weight_scale" not in headers):
            changes[name] = lambda tensor: (tensor.float() * factor).to(tensor.dtype)
    if not changes:
        raise UsageError(f"{source} has no linear weights in layer {layer}; give another layer")
    return _rewrite(source, out, changes)


def round_weights(source: Path, out: Path, bits: int, group: int = 128) -> Path:
    """Every linear weight of a 16-bit folder rounded to the nearest of 2^bits levels.

    Symmetric, in groups of inputs; the scale is absmax / (2^(bits-1) − 0.5), as compressed-tensors
    has it for symmetric integers.
    """
    levels = 2 ** (bits - 1)

    def rounded(weight: Tensor) -> Tensor:
        grouped = weight.float().view(weight.shape[0], -1, group)
        scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-8) / (levels - 0.5)
        near = (grouped / scale).round().clamp(-levels, levels - 1) * scale
        return near.view_as(weight).to(weight.dtype)

    inside = {name: len(header.shape) for name, header in read_headers(source).items()}
    linear = [n for n, size in inside.items() if _LAYER.search(n) and size == _MATRIX]
    return _rewrite(source, out, dict.fromkeys(linear, rounded))


def swap_tokens(source: Path, out: Path, a: str | None = None, b: str | None = None) -> Path:
    """The ids of two entries of tokenizer.json's vocabulary exchanged; weights unchanged.

    ``a`` and ``b`` are written as in the file; by default two digits, or two frequent letters.
    ``UsageError`` for a token that the vocabulary lacks or that is an added one.
    """
    data = read_json(source / _TOKENIZER)
    vocabulary, added = data["model"]["vocab"], {t["content"] for t in data.get("added_tokens", ())}
    known = _ids(vocabulary)
    given = [token for token in (a, b) if token is not None]
    common = [token for token in _COMMON if token in known.keys() - added and token not in given]
    one, two = [*given, *common, "", ""][:2]
    for token in (one, two):
        if token not in known or token in added:
            raise UsageError(
                f"{source / _TOKENIZER} has no ordinary token {token!r}; give one of its vocabulary"
            )
    _set_ids(data, {one: known[two], two: known[one]})
    _copy(source, out)
    _write_json(out / _TOKENIZER, data)
    return out


def wrong_eos(source: Path, out: Path, eos: int | None = None, *, tokenizer: bool = True) -> Path:
    """Another end of sequence in generation_config.json and config.json.

    With ``tokenizer`` the ``eos_token`` of tokenizer_config.json and special_tokens_map.json is
    changed as well: vLLM ends an answer at the tokenizer's token and at those of the generation
    config, so without it answers still end where they should. ``eos`` is an added token's id, by
    default the last one that does not end answers yet. ``UsageError`` without such a token.
    """
    names = {t["id"]: t["content"] for t in read_json(source / _TOKENIZER).get("added_tokens", ())}
    files = [name for name in ("generation_config.json", "config.json") if (source / name).exists()]
    ends: set[Any] = set()
    for name in files:
        value = read_json(source / name).get("eos_token_id")
        ends |= set(value if isinstance(value, list) else [value])
    chosen = max(names.keys() - ends, default=None) if eos is None else eos
    if chosen is None or chosen not in names or chosen in ends:
        raise UsageError(f"{source} has no added token {chosen} that is not its end; give another")
    _copy(source, out)
    for name in files:
        _write_json(out / name, read_json(source / name) | {"eos_token_id": chosen})
    for name in ("tokenizer_config.json", "special_tokens_map.json") if tokenizer else ():
        if values := read_json_if_any(source / name):
            _write_json(out / name, values | {"eos_token": names[chosen]})
    return out


def _ids(vocabulary: Any) -> dict[str, int]:
    """Ids by token; a Unigram vocabulary is a list of [token, score], the place is the id."""
    if isinstance(vocabulary, list):
        return {token: place for place, (token, _) in enumerate(vocabulary)}
    return dict(vocabulary)


def _set_ids(data: dict[str, Any], ids: Mapping[str, int]) -> None:
    """Give tokens other ids in tokenizer.json's data, in place; a token keeps its score."""
    vocabulary = data["model"]["vocab"]
    if not isinstance(vocabulary, list):
        vocabulary.update(ids)
        return
    entries = {token: [token, score] for token, score in vocabulary}
    for token, place in ids.items():
        vocabulary[place] = entries[token]


def _copy(source: Path, out: Path) -> None:
    if out.exists():
        raise UsageError(f"{out} is there already; give a folder that is not")
    shutil.copytree(source, out, symlinks=False)


def _rewrite(source: Path, out: Path, changes: Mapping[str, Change]) -> Path:
    """A copy of ``source`` in which each named tensor is what its change makes of it.

    Files without such a tensor stay as they are, byte for byte.
    """
    headers = read_headers(source)
    _copy(source, out)
    for file in sorted({headers[name].file for name in changes}):
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        for name in tensors.keys() & changes.keys():
            tensors[name] = changes[name](tensors[name]).contiguous()
        save_file(tensors, out / file.relative_to(source), metadata=metadata)
    return out


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    file.write_text(text, encoding="utf-8")
