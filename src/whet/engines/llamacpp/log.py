"""llama-server's start-up log to ``EngineFacts``: only what it printed, None where it is silent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whet.core.records.evidence import EngineFacts
from whet.core.units import GIB, MIB
from whet.engines.base import SchemeKernels

_VERSION: Final = re.compile(r"build:? (\d+) \((\w+)\)")
_START: Final = "llama_model_loader: loaded meta data"
_TYPE: Final = re.compile(r"- type\s+(\w+):\s+(\d+) tensors")
_KV: Final = re.compile(
    r"size =\s+(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s+\d+ layers,\s+"
    r"\d+/\s*(?P<streams>\d+) seqs\), K \((?P<k>\w+)\)"
)
_CONTEXT: Final = re.compile(r"n_ctx_(?:slot|seq)\s+= (\d+)")
_BATCH: Final = re.compile(r"llama_context: n_batch\s+= (\d+)")
_FLASH: Final = re.compile(r"Flash Attention (?:was auto, set to )?(enabled|disabled)")
_PLAIN: Final = frozenset({"f16", "bf16"})
_NORMS: Final = "f32"
_METHODS: Final = {"draft-simple": "draft_model", "ngram-simple": "ngram"}
_SETTINGS: Final = (
    ("max_num_seqs", re.compile(r"n_slots = (\d+)")),
    ("threads", re.compile(r"n_threads = (\d+)")),
    (
        "speculative_config.num_speculative_tokens",
        re.compile(r"speculative implementation '[^']*'[^-]*- (?:n_max|size_n=\d+, size_m)=(\d+)"),
    ),
)
_DRAFTS: Final = re.compile(r"adding speculative implementation '([^']+)'")
_NOTICE: Final = re.compile(r"^(?:[\d.]+ )?[WE] (?P<text>.+)$", re.MULTILINE)
_OWN: Final = ("security: no API key", "--cache-idle-slots requires --cache-ram")
"""Warnings about what whet sets on purpose."""


def read_log(log: str) -> EngineFacts:
    """Facts of one start; with a draft model the tensors are the target's, which loads first."""
    types = dict(_types(log))
    quantized = {name: n for name, n in types.items() if name not in _PLAIN | {_NORMS}}
    kv = _KV.search(log)
    return EngineFacts(
        version=_version(log),
        weight_kernels=tuple(f"{name} for {count} tensors" for name, count in quantized.items()),
        quantized_layers=sum(quantized.values()) if types else None,
        unquantized_layers=sum(n for name, n in types.items() if name in _PLAIN) if types else None,
        attention_backend=_attention(log),
        kv_cache_tokens=None if kv is None else int(kv["cells"]) * int(kv["streams"]),
        kv_cache_dtype=None if kv is None else kv["k"],
        kv_memory_gib=None if kv is None else float(kv["mib"]) * MIB / GIB,
        max_model_len=_number(_CONTEXT, log),
        batched_tokens=_number(_BATCH, log),
        notices=read_notices(log),
        settings=tuple(_settings(log)),
    )


def read_notices(log: str) -> tuple[str, ...]:
    """The lines that report something slower or other than requested, each once."""
    texts = (match["text"].strip() for match in _NOTICE.finditer(log))
    return tuple(dict.fromkeys(text for text in texts if not any(own in text for own in _OWN)))


def _types(log: str) -> Iterator[tuple[str, int]]:
    """The tensors of the first model that is loaded, by type."""
    first = log.split(_START)[1:2]
    for name, count in _TYPE.findall(first[0] if first else ""):
        yield name, int(count)


def _settings(log: str) -> Iterator[tuple[str, str]]:
    for name, pattern in _SETTINGS:
        if (match := pattern.search(log)) is not None:
            yield name, match[1]
    if (method := _DRAFTS.search(log)) is not None:
        yield "speculative_config.method", _METHODS.get(method[1], method[1])


def _version(log: str) -> str | None:
    match = _VERSION.search(log)
    if match is None:
        return None
    return f"b{match[1]} ({match[2]})"


def _attention(log: str) -> str | None:
    match = _FLASH.search(log)
    words = {"enabled": "flash attention", "disabled": "plain attention"}
    return None if match is None else words[match[1]]


def _number(pattern: re.Pattern[str], log: str) -> int | None:
    match = pattern.search(log)
    return None if match is None else int(match[1])


_SMALLER_BLOCKS: Final = frozenset({"q5_0", "q5_1", "q8_0", "iq4_nl"})
"""Stored by llama-quantize in place of a k-quant where rows are not a multiple of 256."""


def _scheme(*names: str) -> SchemeKernels:
    """Each type has a kernel of its own; one of another scheme's says that the file is not it."""
    return SchemeKernels(native=frozenset(names) | _SMALLER_BLOCKS, fallback=frozenset())


KERNELS: Final = {
    "Q4_K_M": _scheme("q4_K", "q5_K", "q6_K"),
    "Q5_K_M": _scheme("q5_K", "q6_K"),
    "Q8_0": _scheme("q8_0"),
}
