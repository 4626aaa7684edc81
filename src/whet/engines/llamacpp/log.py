"""llama-server's start-up log to ``EngineFacts``: only what it printed, None where it is silent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from whet.core.records import EngineFacts
from whet.core.units import GIB, MIB

_VERSION: Final = re.compile(r"build(?:_info)?: (?:b(\d+)-(\w+)|(\d+) \((\w+)\))")
_START: Final = "llama_model_loader: loaded meta data"
_TYPE: Final = re.compile(r"- type\s+(\w+):\s+(\d+) tensors")
_KV: Final = re.compile(
    r"size =\s+(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s+(?P<layers>\d+) layers,\s+"
    r"(?P<seqs>\d+)/\s*\d+ seqs\), K \((?P<k>\w+)\)"
)
_CONTEXT: Final = re.compile(r"n_ctx_(?:slot|seq)\s+= (\d+)")
_BATCH: Final = re.compile(r"llama_context: n_batch\s+= (\d+)")
_FLASH: Final = re.compile(r"Flash Attention was auto, set to (\w+)|flash_attn\s+= (\w+)")
_PLAIN: Final = frozenset({"f16", "bf16"})
_NORMS: Final = "f32"
_NOTICE: Final = re.compile(
    r"fallback|not supported|will be slow|disabl(?:ed|ing)|failed to|unable to|ignor(?:ed|ing)",
    re.IGNORECASE,
)
_LEVEL: Final = re.compile(r"^(?:[\d.]+ )?(?:[WE] )?")


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
        kv_cache_tokens=None if kv is None else int(kv["cells"]) * int(kv["seqs"]),
        kv_cache_dtype=None if kv is None else kv["k"],
        kv_memory_gib=None if kv is None else float(kv["mib"]) * MIB / GIB,
        max_model_len=_number(_CONTEXT, log),
        batched_tokens=_number(_BATCH, log),
        notices=read_notices(log),
    )


def read_notices(log: str) -> tuple[str, ...]:
    """The lines that report something slower or other than requested, each once."""
    lines = (_LEVEL.sub("", line) for line in log.splitlines())
    return tuple(dict.fromkeys(line for line in lines if _NOTICE.search(line)))


def _types(log: str) -> Iterator[tuple[str, int]]:
    """The tensors of the first model that is loaded, by type."""
    first = log.split(_START)[1:2]
    for name, count in _TYPE.findall(first[0] if first else ""):
        yield name, int(count)


def _version(log: str) -> str | None:
    match = _VERSION.search(log)
    if match is None:
        return None
    return f"b{match[1] or match[3]} ({match[2] or match[4]})"


def _attention(log: str) -> str | None:
    match = _FLASH.search(log)
    word = None if match is None else match[1] or match[2]
    return {"enabled": "flash attention", "disabled": "plain attention"}.get(word or "")


def _number(pattern: re.Pattern[str], log: str) -> int | None:
    match = pattern.search(log)
    return None if match is None else int(match[1])
