"""A start-up log to ``EngineFacts``: only what the engine logged, None where it logged nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from whet.core.records.evidence import EngineFacts
from whet.engines.vllm.signals import NOTICES, PATTERNS

START_LINE = "Initializing a V1 LLM engine (v"
"""Of the engine's line of configuration."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?P<who>\([^)]*pid=\d+\))?\s*"
    r"(?:(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d [\d:]+ \[[^\]]+\] ?)?"
)
_API_SERVER = re.compile(r"\(ApiServer_(\d+) ")
_FRONTENDS = (("rust", "(RustFrontend "), ("python", "(APIServer "), ("python", "(ApiServer_"))
_MODE = re.compile(r"Performance mode set to '(\w+)'")
_DRAFT_HEAD = re.compile(r"Quantized an? (\w+) copy of the lm_head")
_VERSION = re.compile(re.escape(START_LINE) + r"([^)]+)\)")
_KERNEL = re.compile(r"(?:Using|Selected) (\w+Kernel) for ([\w-]+)")
_EXPERT_KERNEL = re.compile(
    r"Using '?(\w+)'? (Fp8|Int8|WNA16|Mxfp4|MxFp8|NvFp4) MoE backend(?! LoRA)"
)
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+)")
_ATTENTION = re.compile(r"Using (\w+) attention backend")
_ATTENTION_CLASS = re.compile(r"\(attn\): \w+\(.*backend=(\w+)")
_PREFIX_CACHING = re.compile(r"Initializing .* engine .*enable_prefix_caching=(True|False)")
_ASYNC = re.compile(r"[Aa]sync(?:hronous)? scheduling is (enabled|disabled)")
_ASYNC_OFF = re.compile(PATTERNS.async_off)
_MODEL_LEN = re.compile(r"Using max model len (\d+)")
_BATCHED = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_EAGER = re.compile(r"Enforce eager set")
_GRAPHS = re.compile(r"Graph capturing finished")
_TP_SIZE = re.compile(r"Linear\(.*\btp_size=(\d+)")
_FP8_KV = re.compile(r"Using (\w+) data type to store kv cache")
_KV_MEMORY = re.compile(
    r"(?:Available KV cache memory:|Initial free memory [\d.]+ GiB, reserved) ([\d.]+) GiB"
)
_KV_HEADS = re.compile(r"\(attn\): \w+\(.*head_size=(?P<size>\d+),.*num_kv_heads=(?P<heads>\d+)")
_V2_RUNNER = re.compile(r"Using V2 Model Runner")
_LORA = re.compile(r"Loaded new LoRA adapter: name '([^']+)'")
_EXPERTS = re.compile(r"\bExpert parallelism is enabled\b")
_RESOLVED = {
    "speculative_config.method": re.compile(r"SpeculativeConfig\(method='(\w+)'"),
    "speculative_config.num_speculative_tokens": re.compile(
        r"SpeculativeConfig\([^)]*num_spec_tokens=(\d+)"
    ),
    "kv_cache_dtype": re.compile(r"\bkv_cache_dtype=(\w+)"),
    "compilation_config.cudagraph_mode": re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)"),
    "compilation_config.cudagraph_capture_sizes": re.compile(
        r"'cudagraph_capture_sizes': (\[[\d, ]*\])"
    ),
}
"""Flags whose resolved values the engine's line of configuration has: all that a server with the
Rust front end says of them.
"""
_STRUCTURE = "vLLM model structure:"
_GROUP = re.compile(r"^(?P<indent>\s*)\([\d\-, ]+\): (?P<count>\d+) x ")
_LAYER = re.compile(r"^(?P<indent>\s*)\([^)]+\): (?P<cls>\w+)\((?P<inside>.*)$")
_QUANTIZED = re.compile(r"\bquant=(?!\w*KVCache)")  # a quantized KV cache is not a quantized layer
_NOTICE = re.compile(NOTICES)
_STAMPED = re.compile(
    r"^\((?P<who>[A-Za-z]+)\S* pid=\d+\) [A-Z]+ \d\d-\d\d (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) "
    r"\[[^\]]+\] (?P<text>.*)",
    re.MULTILINE,
)
_LISTENS = ("Starting vLLM server on", "OpenAI server is ready")
_DAY_S = 24 * 60 * 60
_MODEL_S = re.compile(r"Model loading took [\d.]+ GiB memory and ([\d.]+) seconds")
_WEIGHTS_S = re.compile(r"Loading weights took ([\d.]+) seconds")
_INIT_S = re.compile(r"init engine \(.*\) took ([\d.]+) s")
_COMPILE_S = re.compile(r"init engine \(.*\) took .*\(compilation: ([\d.]+) s\)")
_GRAPHS_S = re.compile(r"Graph capturing finished in ([\d.]+) secs")


def read_log(log: str) -> EngineFacts:
    """Facts of one start.

    The layers counted are the target's: it is the first structure printed, a draft's comes after.
    """
    lines = list(_lines(log))
    texts = [text for _, text in lines]
    layers = _target_layers(lines)
    quantized, unquantized = (None, None) if layers is None else _count_layers(layers)
    caching = _first(_PREFIX_CACHING, texts)
    facts = EngineFacts(
        version=_first(_VERSION, texts),
        weight_kernels=_kernels(texts),
        quantized_layers=quantized,
        unquantized_layers=unquantized,
        attention_backend=_first(_ATTENTION, texts) or _first(_ATTENTION_CLASS, texts),
        kv_cache_tokens=_number(_first(_KV_TOKENS, texts)),
        prefix_cache_enabled=None if caching is None else caching == "True",
        async_scheduling=_async(texts),
        notices=read_notices(log),
        attention_class=_first(_ATTENTION_CLASS, texts),
        max_model_len=_number(_first(_MODEL_LEN, texts)),
        batched_tokens=_number(_first(_BATCHED, texts)),
        eager=_logged(_EAGER, texts),
        graphs_captured=_logged(_GRAPHS, texts),
        tensor_parallel=_number(_first(_TP_SIZE, texts)),
        # The layers' CompressedTensorsKVCacheMethod says nothing: every such checkpoint has it.
        kv_cache_dtype=_first(_FP8_KV, texts),
        kv_memory_gib=float(memory) if (memory := _first(_KV_MEMORY, texts)) else None,
        kv_elements=None if layers is None else _kv_elements(layers),
        expert_parallel=_logged(_EXPERTS, texts),
        api_servers=len({m[1] for who, _ in lines if (m := _API_SERVER.match(who))}) or None,
        v2_model_runner=_logged(_V2_RUNNER, texts),
        loras=tuple(dict.fromkeys(m[1] for text in texts if (m := _LORA.search(text)))),
        frontend=_frontend({who for who, _ in lines}),
        performance_mode=_first(_MODE, texts),
        draft_head=_first(_DRAFT_HEAD, texts),
        settings=tuple(_settings(texts)),
    )
    return _with_times(facts, _ANSI.sub("", log))


def _with_times(facts: EngineFacts, log: str) -> EngineFacts:
    """Seconds of each part of the start, from a log without colours.

    A CPU's log has no time of the whole model's loading: there it is that of its weights.
    """
    weights = [float(seconds) for seconds in _WEIGHTS_S.findall(log)]
    return replace(
        facts,
        core_s=_core_s(log),
        load_s=_seconds(_MODEL_S, log) or (sum(weights) if weights else None),
        init_s=_seconds(_INIT_S, log),
        compile_s=_seconds(_COMPILE_S, log),
        graphs_s=_seconds(_GRAPHS_S, log),
    )


def _seconds(pattern: re.Pattern[str], log: str) -> float | None:
    match = pattern.search(log)
    return None if match is None else float(match[1])


def _core_s(log: str) -> float | None:
    """From the engine core's first line until the server listens, in whole seconds.

    Workers in processes of their own import everything once more: that time is left out.
    """
    began = core = spawned = None
    for line in _STAMPED.finditer(log):
        now = 3600 * int(line["h"]) + 60 * int(line["m"]) + int(line["s"])
        if began is None and line["text"].startswith(START_LINE):
            began = now
        elif began is not None and line["text"].startswith(_LISTENS):
            return float((now - began) % _DAY_S - (spawned or 0))
        if spawned is None and core is not None and "Worker" in line["who"]:
            spawned = (now - core) % _DAY_S
        if line["who"] == "EngineCore":
            core = now
    return None


def _settings(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    line = next((text for text in texts if text.startswith(START_LINE)), "")
    for name, pattern in _RESOLVED.items():
        if match := pattern.search(line):
            yield name, match[1]


def read_notices(log: str) -> tuple[str, ...]:
    """The lines that report something slower or other than requested, each once."""
    texts = (text for _, text in _lines(log))
    return tuple(dict.fromkeys(text for text in texts if _NOTICE.search(text)))


def _lines(log: str) -> Iterator[tuple[str, str]]:
    """(which process, what it said), prefixes cut and the indentation of the message kept."""
    for line in _ANSI.sub("", log).splitlines():
        match = _PREFIX.match(line)
        assert match is not None
        yield match["who"] or "", line[match.end() :]


def _first(pattern: re.Pattern[str], texts: Iterable[str]) -> str | None:
    return next((match[1] for text in texts if (match := pattern.search(text))), None)


def _number(written: str | None) -> int | None:
    return None if written is None else int(written.replace(",", ""))


def _frontend(processes: set[str]) -> str | None:
    """The process that answers HTTP, by what its lines start with."""
    for kind, start in _FRONTENDS:
        if any(who.startswith(start) for who in processes):
            return kind
    return None


def _logged(pattern: re.Pattern[str], texts: Iterable[str]) -> bool | None:
    """True where the log says so; silence is None, because it proves nothing."""
    return True if any(pattern.search(text) for text in texts) else None


def _kernels(texts: Iterable[str]) -> tuple[str, ...]:
    """``MarlinLinearKernel for AutoGPTQ``; of routed experts ``Mxfp4MoE-TRITON for experts``."""
    lines: dict[str, None] = {}
    for text in texts:
        if match := _KERNEL.search(text):
            lines[f"{match[1]} for {match[2]}"] = None
        elif match := _EXPERT_KERNEL.search(text):
            lines[f"{match[2]}MoE-{match[1]} for experts"] = None
    return tuple(lines)


def _async(texts: list[str]) -> bool | None:
    if any(_ASYNC_OFF.search(text) for text in texts):
        return False
    word = _first(_ASYNC, texts)
    return None if word is None else word == "enabled"


def _count_layers(layers: Iterable[tuple[int, str]]) -> tuple[int, int]:
    """(with ``quant=``, linear without).

    The output head and the embeddings are not linear layers here: no recipe touches them.
    """
    quantized = unquantized = 0
    for weight, text in layers:
        layer = _LAYER.match(text)
        if _QUANTIZED.search(text):
            quantized += weight
        elif layer is not None and layer["cls"].endswith("Linear"):
            unquantized += weight
    return quantized, unquantized


def _kv_elements(layers: Iterable[tuple[int, str]]) -> int | None:
    """Numbers that one token has in the KV cache: keys and values of every attention layer."""
    numbers = sum(
        2 * weight * int(match["size"]) * int(match["heads"])
        for weight, text in layers
        if (match := _KV_HEADS.search(text))
    )
    return numbers or None


def _target_layers(lines: list[tuple[str, str]]) -> list[tuple[int, str]] | None:
    """(how often, as printed) for each layer of the first structure; None if none is printed."""
    start = next((i for i, (_, text) in enumerate(lines) if text.startswith(_STRUCTURE)), None)
    if start is None:
        return None
    who, layers = lines[start][0], list[tuple[int, str]]()
    groups: list[tuple[int, int]] = []
    for speaker, text in lines[start + 1 :]:
        if speaker != who:
            continue  # another rank speaks in between
        if text.startswith(")") or not re.match(r"\s*[()\w]", text):
            break
        indent = len(text) - len(text.lstrip())
        groups = [group for group in groups if group[0] < indent]
        if group := _GROUP.match(text):
            groups.append((indent, int(group["count"])))
        layers.append((prod(count for _, count in groups), text))
    return layers
