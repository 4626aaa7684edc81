"""What each move of the playbook changes in a configuration, and where it applies."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from whet.core.format import percent
from whet.core.records.engine import UNQUANTIZED
from whet.flow.run.situation import Head, Situation
from whet.predict.settings import LARGEST_GRAPH

Value = Mapping[str, Any]
"""A variant as whet.yaml has it: ``{"weights": "fp8", "prefix_cache": True}``."""
_FP8_SINCE: Final = (8, 9)
_INT8_SINCE: Final = (8, 0)
_QUANTIZED_SINCE: Final = (7, 5)
_HOPPER: Final = (9, 0)
_COPIED: Final = 0.3
"""Share of trigrams from the prompt, from which on n-grams are worth a try."""
_KV_SHARE: Final = 0.3
"""Share of the memory that the KV cache of the largest load takes, from which on it may limit."""
_LONG: Final = 4096
"""Tokens of a request from which on attention reads much."""
_K: Final = 4
"""Draft tokens where nobody says better."""
_MOST_K: Final = 8
_COPIED_K: Final = {"ngram": _K, "suffix": 24}
"""Suffixes draft as many as the match is likely to go on for, so K is a bound only."""
_GREEDY: Final = 0.99
_SIZES: Final = (
    *(1, 2, 4, 5, 8, 10, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384),
    *(448, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048),
)
_EVERY_STEP: Final = json.dumps({"cudagraph_mode": "FULL", "cudagraph_capture_sizes": _SIZES})
"""One CUDA graph for each step, prompts among them: 38 sizes are captured in some 10 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One configuration that a move leads to, and why it is worth a try here."""

    value: Value
    why: str


class Stays(Exception):
    """Why a move does not apply here."""


Changes = Callable[[Situation, Value], Iterator[Change]]
"""Yields what a move leads to from a configuration, or raises ``Stays``."""


def _set(value: Value, **change: object) -> dict[str, Any]:
    return {**value, **change}


def _args(value: Value, **change: object) -> dict[str, Any]:
    return _set(value, args={**value.get("args", {}), **change})


def _gpu(situation: Situation, since: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    _vllm(situation)
    if situation.capability is None:
        raise Stays("for GPUs")
    if situation.capability < since:
        raise Stays(f"for GPUs of compute capability {since[0]}.{since[1]} or later")
    return situation.capability


def _vllm(situation: Situation) -> None:
    if situation.engine != "vllm":
        raise Stays("for vLLM")


def _recipe(name: str, why: str, **change: object) -> Changes:
    def changes(situation: Situation, value: Value) -> Iterator[Change]:
        if value.get("weights") == name:
            raise Stays("it is in")
        if situation.target.stored.scheme not in UNQUANTIZED:
            raise Stays("the target is quantized already")
        if name not in situation.recipes:
            raise Stays("the model cannot be quantized so")
        yield Change(value=_without_kernels(value) | {"weights": name, **change}, why=why)

    return changes


def _without_kernels(value: Value) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != "kernels"}


def _since(
    least: tuple[int, int],
    changes: Changes,
    *,
    before: tuple[int, int] | None = None,
    nvcc: bool = False,
) -> Changes:
    """``changes`` on GPUs from one compute capability on, before another, with a compiler."""

    def bounded(situation: Situation, value: Value) -> Iterator[Change]:
        capability = _gpu(situation, least)
        if before is not None and capability >= before:
            raise Stays(f"for GPUs before compute capability {before[0]}.{before[1]}")
        if nvcc and not situation.nvcc:
            raise Stays("its kernels are compiled at the start, and nvcc is not here")
        yield from changes(situation, value)

    return bounded


def _int4_cpu(situation: Situation, value: Value) -> Iterator[Change]:
    if situation.capability is not None:
        _gpu(situation, _QUANTIZED_SINCE)
    yield from _recipe("int4", "a quarter of the weights is read per step")(situation, value)


def _int8(situation: Situation, value: Value) -> Iterator[Change]:
    if situation.capability is not None:
        _gpu(situation, _INT8_SINCE)
        if situation.capability >= _FP8_SINCE:
            raise Stays("FP8 has the same size here and keeps more")
    yield from _recipe("int8", "half the weights, and products in INT8")(situation, value)


def _checkpoints(situation: Situation, value: Value) -> Iterator[Change]:
    if not situation.checkpoints:
        raise Stays("search.checkpoints names none")
    problems = [each.problem for each in situation.checkpoints if each.problem]
    usable = [each for each in situation.checkpoints if each.problem is None]
    if not usable:
        raise Stays("; ".join(problems))
    for each in usable:
        if value.get("weights") != each.ref:
            yield Change(
                value=_without_kernels(value) | {"weights": each.ref},
                why=f"a published checkpoint in {each.scheme}",
            )


def _kv8(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation, _FP8_SINCE)
    if "kv_cache_dtype" in value.get("args", {}):
        raise Stays("it is in")
    traffic = situation.traffic
    many = situation.in_flight * situation.target.kv_bytes(traffic.longest)
    share = many / situation.device.memory_bytes
    if share < _KV_SHARE and traffic.longest < _LONG:
        raise Stays(
            f"the KV cache of {situation.in_flight} requests takes {percent(share)} of the memory"
        )
    yield Change(
        value=_args(value, kv_cache_dtype="fp8"),
        why=f"the KV cache of {situation.in_flight} long requests takes {percent(share)} of memory",
    )


def _heads(situation: Situation, value: Value) -> Iterator[Change]:
    _vllm(situation)
    if "speculation" in value:
        raise Stays("something drafts already")
    usable = [head for head in situation.heads if head.problem is None]
    if not usable:
        refused = [f"{head.ref}: {head.problem}" for head in situation.heads]
        raise Stays("; ".join(refused) or "no head for this model is listed or named")
    for head in usable:
        yield Change(
            value=_with_graphs(situation, _set(value, speculation=_speculation(head))),
            why=f"several tokens a step, from {head.ref or 'layers of the model'} ({head.source})",
        )


def _speculation(head: Head) -> dict[str, Any]:
    own: dict[str, Any] = {"method": head.method, "num_tokens": head.num_tokens or _K}
    if head.ref:
        own["draft"] = head.ref
    return own | ({"options": dict(head.options)} if head.options else {})


def _draft(situation: Situation, value: Value) -> Iterator[Change]:
    if "speculation" in value:
        raise Stays("something drafts already")
    if not situation.draft:
        raise Stays("model.draft is not set")
    yield Change(
        value=_set(value, speculation={"method": "draft_model", "num_tokens": 4}),
        why="a small model of the same tokenizer drafts",
    )


def _copies(method: str) -> Changes:
    def changes(situation: Situation, value: Value) -> Iterator[Change]:
        if "speculation" in value:
            raise Stays("something drafts already")
        copied = situation.traffic.copied
        if copied is None or copied < _COPIED:
            known = "unknown" if copied is None else percent(copied)
            raise Stays(f"the share of answers that repeat their prompt is {known}")
        yield Change(
            value=_set(value, speculation={"method": method, "num_tokens": _COPIED_K[method]}),
            why=f"{percent(copied)} of the answers' trigrams are in their prompts",
        )

    return changes


def _more_tokens(step: int) -> Changes:
    def changes(situation: Situation, value: Value) -> Iterator[Change]:
        own = value.get("speculation")
        if own is None:
            raise Stays("nothing drafts")
        tokens = own["num_tokens"] + step
        if not 1 <= tokens <= (_K if own["method"] == "mtp" else _MOST_K):
            raise Stays(f"{own['num_tokens']} draft tokens are at the end of the range")
        rest = {key: item for key, item in own.items() if key != "num_tokens_by_load"}
        why = f"{tokens} draft tokens in place of {own['num_tokens']}"
        yield Change(value=_set(value, speculation={**rest, "num_tokens": tokens}), why=why)

    return changes


def _by_load(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation)
    own = value.get("speculation")
    if own is None or own.get("num_tokens_by_load"):
        raise Stays("nothing drafts" if own is None else "it is in")
    least, usual = max(1, own["num_tokens"] - 2), own["num_tokens"]
    most = min(_MOST_K, usual + 2)
    if own["method"] not in ("eagle", "eagle3", "mtp", "draft_model"):
        raise Stays(f"{own['method']} has one K")
    ranges = [[1, 16, most], [17, 64, usual], [65, 4096, least]]
    yield Change(
        value=_set(value, speculation={**own, "num_tokens": most, "num_tokens_by_load": ranges}),
        why="few requests can verify more drafts than many",
    )


def _block(situation: Situation, value: Value) -> Iterator[Change]:
    _vllm(situation)
    own = value.get("speculation")
    if own is None or "rejection_sample_method" in own:
        raise Stays("nothing drafts" if own is None else "it is in")
    if situation.traffic.greedy >= _GREEDY:
        raise Stays("for sampled answers; this traffic is greedy")
    _gpu(situation)
    yield Change(
        value=_set(value, speculation={**own, "rejection_sample_method": "block"}),
        why=f"{percent(1 - situation.traffic.greedy)} of the requests are sampled",
    )


def _rust(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation)
    if value.get("frontend") == "rust":
        raise Stays("it is in")
    args = {k: v for k, v in value.get("args", {}).items() if k != "api_server_count"}
    yield Change(
        value=_set(value, args=args, frontend="rust"), why="less of a token's time is Python's"
    )


def _servers(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation)
    if value.get("frontend") == "rust" or "api_server_count" in value.get("args", {}):
        raise Stays("the front end is changed already")
    yield Change(value=_args(value, api_server_count=4), why="four processes answer HTTP")


def _mode(name: str, why: str) -> Changes:
    def changes(situation: Situation, value: Value) -> Iterator[Change]:
        _gpu(situation)
        if "performance_mode" in value:
            raise Stays("a mode is set")
        yield Change(value=_set(value, performance_mode=name), why=why)

    return changes


def _with_graphs(situation: Situation, value: Value) -> dict[str, Any]:
    """The same, with a CUDA graph for every step where steps are longer than usual graphs."""
    tokens = situation.in_flight * (1 + value.get("speculation", {}).get("num_tokens", 0))
    has = "compilation_config" in value.get("args", {})
    if situation.capability is None or tokens <= LARGEST_GRAPH or has:
        return dict(value)
    return _args(value, compilation_config=_EVERY_STEP)


def _full_graphs(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation)
    if "compilation_config" in value.get("args", {}):
        raise Stays("it is in")
    yield Change(
        value=_args(value, compilation_config=_EVERY_STEP),
        why="a CUDA graph for every step up to 2,048 tokens, those with prompts too",
    )


def _expert_graphs(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation)
    if situation.target.experts is None:
        raise Stays("for mixtures of experts")
    if "max_cudagraph_capture_size" in value.get("args", {}):
        raise Stays("it is in")
    yield Change(
        value=_args(value, max_num_batched_tokens=2048, max_cudagraph_capture_size=2048),
        why="every step of the experts fits a CUDA graph",
    )


def _batched(tokens: int, why: str) -> Changes:
    def changes(situation: Situation, value: Value) -> Iterator[Change]:
        _gpu(situation)
        if "max_num_batched_tokens" in value.get("args", {}):
            raise Stays("it is set")
        yield Change(value=_args(value, max_num_batched_tokens=tokens), why=why)

    return changes


def _attention(situation: Situation, value: Value) -> Iterator[Change]:
    _gpu(situation)
    if "attention_backend" in value.get("args", {}):
        raise Stays("it is set")
    if situation.target.mla:
        raise Stays("for models without latent attention")
    yield Change(value=_args(value, attention_backend="FLASHINFER"), why="other kernels")


def _layouts(kind: str) -> Changes:
    def changes(situation: Situation, value: Value) -> Iterator[Change]:
        _gpu(situation)
        count, flags = situation.device.count, ("tensor_parallel_size", "data_parallel_size")
        if count == 1:
            raise Stays("for several GPUs")
        args, replicas = value.get("args", {}), value.get("layout", {}).get("replicas", 1)
        sizes = {"replicas": replicas, **{flag: args.get(flag, 1) for flag in flags}}
        if math.prod(sizes.values()) == count:  # the same GPUs in another layout
            if sizes[kind] > 1:
                raise Stays("it is in")
            sizes = dict.fromkeys(sizes, 1)
        sizes[kind] *= count // math.prod(sizes.values())
        args = {key: item for key, item in args.items() if key not in flags}
        args |= {flag: sizes[flag] for flag in flags if sizes[flag] > 1}
        changed = {key: item for key, item in value.items() if key not in ("args", "layout")}
        changed |= {"args": args} if args else {}
        changed |= {"layout": {"replicas": sizes["replicas"]}} if sizes["replicas"] > 1 else {}
        words = kind.removesuffix("_size").replace("_", " ")
        yield Change(value=changed, why=f"all {count} GPUs, {words}")

    return changes


CHANGES: Final[Mapping[str, Changes]] = {
    "fp8": _since(_FP8_SINCE, _recipe("fp8", "half the weights, and this card computes in FP8")),
    "checkpoint": _checkpoints,
    "head": _heads,
    "int8": _int8,
    "draft": _draft,
    "w4a8": _since(
        _HOPPER,
        _recipe("w4a8", "a quarter of the weights, products in FP8 (Humming)", kernels="humming"),
        nvcc=True,
    ),
    "w4a16": _since(
        _QUANTIZED_SINCE,
        _recipe("int4", "a quarter of the weights is read per step (Humming)", kernels="humming"),
        nvcc=True,
    ),
    "int4": _int4_cpu,
    "ngram": _copies("ngram"),
    "suffix": _copies("suffix"),
    "k-by-load": _by_load,
    "k-up": _more_tokens(2),
    "k-down": _more_tokens(-2),
    "block": _block,
    "rust": _rust,
    "api-servers": _servers,
    "throughput": _mode("throughput", "more tokens per step and more requests at once"),
    "interactivity": _mode("interactivity", "a CUDA graph for each batch up to 32"),
    "full-graphs": _full_graphs,
    "expert-graphs": _expert_graphs,
    "kv8": _kv8,
    "large-steps": _batched(16384, "more of a prompt per step"),
    "small-steps": _batched(2048, "answers wait less for prompts"),
    "attention": _attention,
    "replicas": _layouts("replicas"),
    "data-parallel": _layouts("data_parallel_size"),
    "tensor-parallel": _layouts("tensor_parallel_size"),
}
"""What each row of moves.csv changes."""
