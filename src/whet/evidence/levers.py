"""Claims about levers that a start settles: log, endpoints, and which of them is to be believed.

A source that is known to lie never proves alone: ``/server_info`` repeats the attention backend
that was wished for even where it was refused, and any resolved setting of a method that silently
does nothing (``int8_per_channel_weight_only``). vLLM 0.26 to 0.33.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from whet.core.levers import plain_args
from whet.core.records import Declared, EngineFacts, ResolvedEngine, Scalar, Variant
from whet.core.units import GIB
from whet.evidence.claims import parallel_sizes, settings
from whet.evidence.dialect import ASYNC_OFF, GRAPHS_CHANGED, NO_GRAPHS, UNIT_KV_SCALE

Outcome = tuple[str, str, tuple[str, ...]]
_SPECULATION: Final = "speculative_config"
_ADDED_TO: Final = "compilation_config.custom_ops"
"""A list that vLLM adds to: a word for the operations that it does not name, and more of them."""
_GRAPHS: Final = "compilation_config.cudagraph_mode"
_CASCADE: Final = "disable_cascade_attn"
_GRAPH_MODES: Final = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2, 0]": "FULL_DECODE_ONLY",
    "[2, 1]": "FULL_AND_PIECEWISE",
}
"""vLLM's ``CUDAGraphMode`` as ``/server_info`` writes it."""
NOTHING: Final = Declared(version=None, config=(), cache=(), models=())

FP8_BYTES: Final = 1.5
"""Scales and a draft's share make 8 bits a little more than a byte; 16 bits are two."""

_SECTIONS: Final = (
    "model_config",
    "cache_config",
    "scheduler_config",
    "parallel_config",
    "compilation_config",
    "load_config",
    "lora_config",
    "observability_config",
    "structured_outputs_config",
    "kernel_config",
    "attention_config",
)
"""Where a flag's resolved value is looked for, the likeliest first."""

_CLASS_OF: Final = {
    "CPUAttentionBackendImpl": "CPU_ATTN",
    "FlashAttentionImpl": "FLASH_ATTN",
    "TritonAttentionImpl": "TRITON_ATTN",
    "FlashInferImpl": "FLASHINFER",
    "FlexAttentionImpl": "FLEX_ATTENTION",
}
_REFUSED: Final = ("Cannot use", "precluded higher-priority backend")
_ON: Final = frozenset({"true", "on", "yes"})
_OFF: Final = frozenset({"false", "off", "no", "none", "null"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of a variant's server: what was asked, what the log and the endpoints said."""

    resolved: ResolvedEngine
    facts: EngineFacts
    declared: Declared
    asked: Mapping[str, Scalar] = field(init=False)

    def __post_init__(self) -> None:
        """The flags by their plain names."""
        object.__setattr__(self, "asked", plain_args(self.variant))

    @property
    def variant(self) -> Variant:
        """What was asked for."""
        return self.resolved.variant


def judge_settings(start: Start) -> Outcome:
    """Every setting that some source tells must be as asked.

    A flag that no source tells is named; where the variant itself sets it, it is a lever without
    proof.
    """
    asked = settings(start.variant)
    told = {name: list(_sources(name, start)) for name in asked}
    quotes = tuple(quote for name in asked for _, quote in told[name])
    wrong = [
        f"{name}={value}, and {quote}"
        for name, value in asked.items()
        for seen, quote in told[name]
        if not _agrees(name, value, seen)
    ]
    if wrong:
        return "contradicted", f"asked for {'; '.join(wrong)}", quotes
    silent = [name for name, found in told.items() if not found]
    own = [n for n in asked if {n, n.split(".")[0]} & {*start.variant.own_args, _SPECULATION}]
    untold = [name for name in silent if name in own]
    if untold or len(silent) == len(asked):
        return "unproved", f"no source tells of {', '.join(untold or silent)}", quotes
    rest = f"; no source tells of {', '.join(silent)}" if silent else ""
    levers = ", ".join(f"{name.rsplit('.', 1)[-1]} {asked[name]}" for name in own)
    count = f"{len(asked) - len(silent)} settings are as asked"
    return "proved", f"{levers}: {count}{rest}" if levers else f"{count}{rest}", quotes


def judge_kv_cache(start: Start) -> Outcome:
    """The label and the log say what was decided; the pool's memory over its tokens, what is so."""
    wanted = str(start.asked["kv_cache_dtype"])
    label = dict(start.declared.cache).get("cache_dtype")
    said, each = start.facts.kv_cache_dtype, _kv_bytes(start)
    quotes = tuple(
        quote
        for quote, value in (
            (f'vllm:cache_config_info cache_dtype="{label}"', label),
            (f"the log: {said} for the KV cache", said),
            (f"memory ÷ (tokens × numbers a token): {each or 0:.2f} bytes", each),
        )
        if value is not None
    )
    if each is not None and wanted.startswith("fp8") and each > FP8_BYTES:
        return "contradicted", f"a number in the cache takes {each:.2f} bytes", quotes
    if label is not None and not label.startswith(wanted) and not wanted.startswith(label):
        return "contradicted", f"the cache is stored in {label}", quotes
    unscaled = tuple(n for n in start.facts.notices if UNIT_KV_SCALE in n)
    if start.variant.kv_scales and unscaled:
        return "contradicted", f"the checkpoint's scales are not in use: {unscaled[0]}", unscaled
    if label is None:
        return "unproved", "vllm:cache_config_info does not tell the cache's type", quotes
    if wanted.startswith("fp8") and said is None:
        return "unproved", f"the label says {label}, and the log nothing of a quantized one", quotes
    tokens = start.facts.kv_cache_tokens
    room = "" if tokens is None else f"; room for {tokens:,} tokens"
    size = "" if each is None else f", {each:.2f} bytes a number"
    return "proved", f"stored in {label}{size}{room}", quotes


def _kv_bytes(start: Start) -> float | None:
    """Bytes that one number of the KV cache takes, from the pool's memory and its tokens.

    A draft's layers share the pool and are not counted, so with a draft it is a little high.
    """
    facts, label = start.facts, dict(start.declared.cache).get("kv_cache_memory_bytes", "")
    memory = facts.kv_memory_gib * GIB if facts.kv_memory_gib is not None else None
    memory = float(label) if label.isdigit() else memory
    if not memory or not facts.kv_cache_tokens or not facts.kv_elements:
        return None
    return memory / (facts.kv_cache_tokens * facts.kv_elements)


def judge_attention(start: Start) -> Outcome:
    """Only the log counts: the resolved configuration repeats the wish."""
    wanted, facts = str(start.asked["attention_backend"]).upper(), start.facts
    refused = tuple(n for n in facts.notices if any(word in n for word in _REFUSED))
    if refused:
        return "contradicted", f"the engine refused: {refused[0]}", refused
    layers = facts.attention_class
    backend = None if facts.attention_backend == layers else facts.attention_backend
    quotes = tuple(f"the log: {word}" for word in (backend, layers) if word is not None)
    named = {word for word in (backend, _CLASS_OF.get(layers or "")) if word is not None}
    if named == {wanted}:
        return "proved", f"{wanted} runs", quotes
    if named:
        other = ", ".join(sorted(named - {wanted}))
        return "contradicted", f"attention runs on {other}", quotes
    if layers is not None:
        return "unproved", f"the class {layers} is not known to be {wanted}", quotes
    return "unproved", "the log names no attention backend", quotes


def judge_execution(start: Start) -> Outcome:
    """Eager is said in the log; graphs leave a line when they are captured."""
    facts = start.facts
    mode = start.declared.setting("compilation_config.mode")
    quotes = tuple(
        quote
        for quote, told in (
            ("the log: Enforce eager set", facts.eager),
            ("the log: Graph capturing finished", facts.graphs_captured),
            (f"/server_info: compilation_config.mode {mode}", mode is not None),
        )
        if told
    )
    if start.asked["enforce_eager"]:
        if facts.graphs_captured:
            return "contradicted", "graphs were captured", quotes
        word = "proved" if facts.eager else "unproved"
        return word, "no graphs, no compilation" if facts.eager else "the log is silent", quotes
    if facts.eager:
        return "contradicted", "the engine runs eagerly", quotes
    overridden = tuple(n for n in facts.notices if re.search(NO_GRAPHS, n))
    if overridden:
        return "contradicted", f"no graphs: {overridden[0]}", overridden
    if start.resolved.device == "cpu":
        on = mode is not None and mode not in ("0", "null", "NONE")
        return "proved" if on else "unproved", f"compilation mode {mode or 'untold'}", quotes
    word = "proved" if facts.graphs_captured else "unproved"
    return (
        word,
        "graphs captured" if facts.graphs_captured else "no word of captured graphs",
        quotes,
    )


def judge_async(start: Start) -> Outcome:
    """The log's line and the resolved setting; one that says otherwise is enough."""
    wanted = bool(start.asked["async_scheduling"])
    setting = start.declared.setting("scheduler_config.async_scheduling")
    seen = {
        "the log": start.facts.async_scheduling,
        "/server_info": None if setting is None else setting.lower() in _ON,
    }
    quotes = tuple(f"{where}: {word}" for where, word in seen.items() if word is not None)
    found = {word for word in seen.values() if word is not None}
    off = tuple(n for n in start.facts.notices if re.search(ASYNC_OFF, n))
    if wanted and off:
        return "contradicted", off[0], off
    if not found:
        return "unproved", "neither log nor /server_info tells", ()
    told = "; ".join(quotes)
    return ("proved" if found == {wanted} else "contradicted"), told, quotes


def judge_parallelism(start: Start) -> Outcome:
    """Sizes as the layers, the ranks and the metrics show them, not only as they were resolved."""
    seen = {
        "tensor_parallel_size": _each_as_text(start.facts.tensor_parallel),
        "data_parallel_size": _each_as_text(start.declared.engines),
        "pipeline_parallel_size": start.declared.setting("parallel_config.pipeline_parallel_size"),
        "enable_expert_parallel": _each_as_text(start.facts.expert_parallel),
    }
    sizes = parallel_sizes(start.variant)
    told = {name: value for name in sizes if (value := seen[name]) is not None}
    quotes = tuple(f"{name}: {value}" for name, value in told.items())
    wrong = [f"{name} is {value}" for name, value in told.items() if not same(sizes[name], value)]
    if wrong:
        return "contradicted", "; ".join(wrong), quotes
    missing = [name for name in sizes if name not in told]
    if missing:
        return "unproved", f"no source tells of {', '.join(missing)}", quotes
    return "proved", "; ".join(quotes), quotes


def judge_lora(start: Start) -> Outcome:
    """The adapters listed as models, and the log's line for each."""
    wanted = [name for name, _ in start.variant.loras]
    listed, loaded = start.declared.models, start.facts.loras
    quotes = (f"/v1/models: {', '.join(listed) or 'nothing'}", f"the log: {', '.join(loaded)}")
    absent = [name for name in wanted if name not in listed]
    if absent and listed:
        return "contradicted", f"not served: {', '.join(absent)}", quotes
    untold = [name for name in wanted if name not in loaded or name not in listed]
    if untold:
        return "unproved", f"nothing tells that {', '.join(untold)} was loaded", quotes
    return "proved", f"{len(wanted)} adapters loaded and served", quotes


JUDGES: Final[Mapping[str, Callable[[Start], Outcome]]] = {
    "settings": judge_settings,
    "kv_cache": judge_kv_cache,
    "attention": judge_attention,
    "execution": judge_execution,
    "async_scheduling": judge_async,
    "parallelism": judge_parallelism,
    "lora": judge_lora,
}


def _agrees(name: str, asked: Scalar, seen: str) -> bool:
    if name != _ADDED_TO:
        return same(asked, seen)
    try:
        return {str(op) for op in json.loads(str(asked))} <= {str(op) for op in json.loads(seen)}
    except (ValueError, TypeError):
        return same(asked, seen)


def same(asked: Scalar, seen: str) -> bool:
    """Whether a resolved value is the one asked for: ``True``/``true``, ``8``/``8.0``, dtypes."""
    one, two = _plain(str(asked)), _plain(seen)
    if one == two:
        return True
    if {one, two} <= _ON or {one, two} <= _OFF:
        return True
    try:
        return float(one) == float(two)
    except ValueError:
        return False


def _plain(text: str) -> str:
    return text.strip().lower().removeprefix("torch.").replace("_", "-")


def _sources(name: str, start: Start) -> Iterator[tuple[str, str]]:
    """(value, quotation) of every source that tells of a setting."""
    own: dict[str, object] = {
        "max_model_len": start.facts.max_model_len,
        "max_num_batched_tokens": start.facts.batched_tokens,
        "enforce_eager": start.facts.eager,
        "api_server_count": start.facts.api_servers,
    }
    if name == _GRAPHS:
        yield from _graph_modes(start)
        return
    if name == _CASCADE:
        yield from _no_cascade(start)
    if (value := own.get(name)) is not None:
        yield str(value), f"the log says {name} {value}"
    if (label := dict(start.declared.cache).get(name)) is not None:
        yield label, f'vllm:cache_config_info says {name}="{label}"'
    keys = (name, *(f"{section}.{name}" for section in _SECTIONS))
    for key in keys:
        if (setting := start.declared.setting(key)) is not None:
            yield setting, f"/server_info says {key}: {setting}"
            return


def _no_cascade(start: Start) -> Iterator[tuple[str, str]]:
    """Where the setting is resolved as asked and nothing reads it (vLLM 0.26)."""
    if start.resolved.device == "cpu":
        yield "true", "vLLM has no cascade attention on a CPU"
    elif start.facts.v2_model_runner:
        yield "true", "the log says Using V2 Model Runner, which has no cascade attention"
    for notice in start.facts.notices:
        if notice.startswith("Disabling cascade attention"):
            yield "true", f"the log: {notice}"


def _graph_modes(start: Start) -> Iterator[tuple[str, str]]:
    """What was resolved, and what a worker made of it once it knew the attention backend."""
    for notice in start.facts.notices:
        if (match := re.search(GRAPHS_CHANGED, notice)) is not None:
            yield match[1], f"the log: {notice}"
    if (setting := start.declared.setting(_GRAPHS)) is not None:
        yield _GRAPH_MODES.get(setting, setting), f"/server_info says {_GRAPHS}: {setting}"


def _each_as_text(value: int | bool | None) -> str | None:
    return None if value is None else str(value)
