"""SGLang's start-up log to ``EngineFacts``: only what it printed, None where it is silent.

whet has the log written in vLLM's form of a line (``logging.json``), with one module at the level
DEBUG: it names the scheme of each quantized layer. All wording is that of 0.5.17's source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from whet.core.records.evidence import EngineFacts
from whet.engines.base import Kernels, SchemeKernels
from whet.engines.failures import plain_lines

START_LINE: Final = "server_args=ServerArgs("
UNIT_KV_SCALE: Final = r"Defaulting to scaling factors of 1\.0"
METHODS: Final = {"EAGLE": "eagle", "EAGLE3": "eagle3", "STANDALONE": "draft_model"}
"""Names of SGLang's algorithms that draft in a chain of ``speculative_num_steps`` tokens."""
_LOADED: Final = re.compile(
    r"Load weight end\. elapsed=(?P<seconds>[\d.]+) s, type=(?P<type>\w+), "
    r"(?:quant=(?P<quant>[\w-]+).*?, )?avail mem="
)
_SCHEME: Final = re.compile(r"Using scheme: (\w+) for \S+")
_POOL: Final = re.compile(
    r"KV Cache is allocated\. dtype: torch\.(?P<dtype>\w+), #tokens: (?P<tokens>\d+), "
    r"K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB"
)
_SIZES: Final = re.compile(
    r"max_total_num_tokens=(?P<tokens>\d+), chunked_prefill_size=(?P<chunk>-?\d+|None), .*"
    r"max_running_requests=(?P<slots>\d+), context_len=(?P<length>\d+)"
)
_GRAPHS: Final = re.compile(r"Capture target (?:decode|verify) CUDA graph end")
_LEVEL: Final = re.compile(r"^(?:WARNING|ERROR) \d\d-\d\d [\d:]+ \[[^\]]+\] (?P<text>.+)$", re.M)
_NOTICE: Final = re.compile(
    r"[Ff]all(?:ing|s)? back|^Disabl|disabled because|is reset to|[Oo]verrid|not support"
    rf"|does not have native|[Ss]etting attention backend|{UNIT_KV_SCALE}"
)
_FP8: Final = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}


def read_log(log: str) -> EngineFacts:
    """Facts of one start; with a draft model the layers are the target's, which loads first."""
    lines = plain_lines(log)
    text = "\n".join(lines)
    loaded, pool, sizes = _LOADED.search(text), _POOL.search(text), _SIZES.search(text)
    args = next((line for line in lines if START_LINE in line), "")
    schemes = Counter(_SCHEME.findall(text[: loaded.start()] if loaded else text))
    return EngineFacts(
        weight_kernels=tuple(f"{name} for {count} layers" for name, count in schemes.items()),
        quantized_layers=_quantized(schemes, loaded),
        unquantized_layers=None if loaded is None else int(loaded["quant"] is None),
        attention_backend=_attention(args),
        kv_cache_tokens=None if pool is None else int(pool["tokens"]),
        kv_cache_dtype=None if pool is None else _FP8.get(pool["dtype"]),
        kv_memory_gib=None if pool is None else float(pool["k"]) + float(pool["v"]),
        prefix_cache_enabled=_flag(args, "disable_radix_cache", when=False),
        max_model_len=None if sizes is None else int(sizes["length"]),
        batched_tokens=_chunk(sizes),
        eager=_flag(args, "disable_cuda_graph", when=True) or None,
        graphs_captured=True if _GRAPHS.search(text) else None,
        notices=read_notices(log),
        load_s=None if loaded is None else float(loaded["seconds"]),
        settings=tuple(_settings(args, sizes)),
    )


def read_notices(log: str) -> tuple[str, ...]:
    """The warnings that report something slower or other than requested, each once."""
    texts = (match["text"].strip() for match in _LEVEL.finditer(log))
    return tuple(dict.fromkeys(text for text in texts if _NOTICE.search(text)))


def _quantized(schemes: Counter[str], loaded: re.Match[str] | None) -> int | None:
    """0 of a model without a quantization method; None where it has one that names no layer."""
    if schemes:
        return schemes.total()
    return 0 if loaded is not None and loaded["quant"] is None else None


def _argument(args: str, name: str) -> str | None:
    """A resolved server argument as Python writes it, without quotes; None for ``None``."""
    match = re.search(rf"\b{name}=(?:'([^']*)'|([^,)]*))", args)
    value = None if match is None else match[1] if match[1] is not None else match[2]
    return None if value == "None" else value


def _flag(args: str, name: str, *, when: bool) -> bool | None:
    value = _argument(args, name)
    return None if value is None else (value == "True") is when


def _attention(args: str) -> str | None:
    """The backend, or both where prompts and decoding have different ones."""
    common = _argument(args, "attention_backend")
    prefill = _argument(args, "prefill_attention_backend") or common
    decode = _argument(args, "decode_attention_backend") or common
    return decode if prefill == decode else f"{prefill} and {decode}"


def _chunk(sizes: re.Match[str] | None) -> int | None:
    chunk = None if sizes is None else sizes["chunk"]
    return None if chunk is None or not chunk.isdecimal() else int(chunk)


def _settings(args: str, sizes: re.Match[str] | None) -> Iterator[tuple[str, str]]:
    if sizes is not None:
        yield "max_num_seqs", sizes["slots"]
        yield "enable_chunked_prefill", str(_chunk(sizes) is not None)
    algorithm = _argument(args, "speculative_algorithm")
    if algorithm is None:
        return
    yield "speculative_config.method", METHODS.get(algorithm, algorithm.lower())
    steps = _argument(args, "speculative_num_steps")
    verified = _argument(args, "speculative_num_draft_tokens")
    if algorithm in METHODS and steps is not None:
        yield "speculative_config.num_speculative_tokens", steps
    elif verified is not None:  # the token that the drafts follow is verified with them
        yield "speculative_config.num_speculative_tokens", str(int(verified) - 1)


_W8A16_FP8: Final = frozenset({"CompressedTensorsW8A16Fp8"})


def _kernels(*native: str, weight_only: frozenset[str] = frozenset()) -> SchemeKernels:
    return SchemeKernels(native=frozenset(native), fallback=frozenset(), weight_only=weight_only)


_BY_SCHEME: Final = {
    "W4A16": _kernels("CompressedTensorsWNA16"),
    "W8A16": _kernels("CompressedTensorsWNA16"),
    "W8A8-INT8": _kernels("CompressedTensorsW8A8Int8"),
    "FP8": _kernels("CompressedTensorsW8A8Fp8", weight_only=_W8A16_FP8),
    "FP8_BLOCK": _kernels("CompressedTensorsW8A8Fp8", weight_only=_W8A16_FP8),
    "NVFP4": _kernels("CompressedTensorsW4A4Fp4"),
}
KERNELS: Final = Kernels(
    schemes={
        **_BY_SCHEME,
        "mixed": _kernels(*(name for each in _BY_SCHEME.values() for name in each.native)),
    },
    load_time={"fp8": "FP8"},
    # Taken where the backend that SGLang prefers (fa3 on Hopper, trtllm_mha on Blackwell,
    # flashinfer elsewhere) is missing or refused.
    slow_attention=frozenset({"triton", "torch_native", "flex_attention"}),
)
