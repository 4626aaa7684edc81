"""What a variant says about itself, and what would prove it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from whet.core.levers import NOT_LEVERS, parts_of, plain_args, speculation_words, structure
from whet.core.records import Claim, Scalar, Variant

UNQUANTIZED: Final = frozenset({"16bit", "32bit"})
HIT_RATE_MARGIN: Final = 0.02
"""Two points either way, for the last block of each prompt and requests cut short."""

_LOAD_TIME: Final = {
    "fp8": "FP8",
    "fp8_per_tensor": "FP8",
    "fp8_per_block": "FP8",
    "fp8_per_channel": "FP8",
    "bitsandbytes": "BNB",
    "gguf": "GGUF",
}
"""What an engine makes of 16-bit weights as it loads them, by ``--quantization``."""

_PARALLEL: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
)
_OWN_CLAIM: Final = frozenset(
    {"quantization", "kv_cache_dtype", "attention_backend", "async_scheduling", *_PARALLEL}
)
"""Flags with a claim of their own; ``enforce_eager`` and the rest are among the settings too."""


def claims(variant: Variant) -> tuple[Claim, ...]:
    """Every claim of a variant, those of the start-up first.

    Weights and settings once a server, and each lever that needs a judge of its own;
    speculation, prefix cache, adapters and static batches for every batch size.
    """
    return tuple(_claims(variant))


def served_scheme(variant: Variant) -> str:
    """The scheme that runs: what is stored, or what the engine makes of it at load."""
    asked = str(plain_args(variant).get("quantization", ""))
    if variant.scheme in UNQUANTIZED and asked:
        return _LOAD_TIME.get(asked, asked)
    return variant.scheme


def settings(variant: Variant) -> dict[str, Scalar]:
    """The engine flags whose resolved values must be those that were asked for.

    ``auto`` and −1 leave the choice to the engine.
    """
    asked = plain_args(variant)
    found = {
        part: value
        for name, whole in asked.items()
        if name not in _OWN_CLAIM | NOT_LEVERS
        for part, value in parts_of(name, whole)
        if value not in ("auto", -1, "-1")
    }
    if variant.speculation is not None:
        found["speculative_config.method"] = variant.speculation.method
        found["speculative_config.num_speculative_tokens"] = variant.speculation.num_tokens
        for name, value in variant.speculation.options:
            if (whole := structure(value)) is not None:
                found[f"speculative_config.{name}"] = json.dumps(whole)
    return found


def parallel_sizes(variant: Variant) -> dict[str, Scalar]:
    """The parallelism that is asked for, by flag; sizes of 1 are none."""
    asked = plain_args(variant)
    return {name: asked[name] for name in _PARALLEL if asked.get(name, 1) not in (1, "1", False)}


def _claims(variant: Variant) -> Iterator[Claim]:
    yield _weights(variant)
    if asked := settings(variant):
        yield _once(
            "settings",
            "the settings that were asked for are the ones resolved: "
            + ", ".join(f"{name}={value}" for name, value in asked.items()),
            "/server_info, the labels of vllm:cache_config_info or the log show each of them",
        )
    yield from _levers(variant)
    yield _speculation(variant)
    yield _prefix_cache(variant)
    if variant.loras:
        names = ", ".join(name for name, _ in variant.loras)
        yield _each(
            "lora_requests",
            f"the timed requests ran with the adapters {names}",
            "the server answered each request under its adapter's name, and its metrics saw them",
        )
    if variant.batching != "continuous":
        yield _each(
            "batching",
            f"{variant.batching} batching",
            "no request of a batch was sent before the batch before it had ended",
        )


def _levers(variant: Variant) -> Iterator[Claim]:
    asked = plain_args(variant)
    if (dtype := asked.get("kv_cache_dtype", "auto")) != "auto":
        yield _once(
            "kv_cache",
            f"the KV cache is stored in {dtype}",
            "vllm:cache_config_info and the log both say so"
            + (", and the log tells of no scale of 1.0" if variant.kv_scales else ""),
        )
    if (backend := asked.get("attention_backend")) is not None:
        yield _once(
            "attention",
            f"attention runs on {backend}",
            "the log names the backend or its class in the layers; /server_info repeats the wish",
        )
    if (eager := asked.get("enforce_eager")) is not None:
        yield _once(
            "execution",
            "eager execution" if eager else "compiled, with CUDA graphs on a GPU",
            "the log says that graphs and compilation are off"
            if eager
            else "the log tells of captured graphs; on a CPU the resolved compilation mode is on",
        )
    if (scheduling := asked.get("async_scheduling")) is not None:
        yield _once(
            "async_scheduling",
            f"asynchronous scheduling is {'on' if scheduling else 'off'}",
            "the log and /server_info agree",
        )
    if sizes := parallel_sizes(variant):
        yield _once(
            "parallelism",
            ", ".join(f"{name}={value}" for name, value in sizes.items()),
            "the layers' tp_size, the ranks in the log, the engines in /metrics and /server_info",
        )
    if variant.loras:
        names = ", ".join(name for name, _ in variant.loras)
        yield _once(
            "lora",
            f"the adapters {names} are loaded",
            "/v1/models lists them and the log tells of each",
        )


def _once(kind: str, statement: str, expected: str) -> Claim:
    return Claim(kind=kind, statement=statement, expected=expected, per_cell=False)


def _each(kind: str, statement: str, expected: str) -> Claim:
    return Claim(kind=kind, statement=statement, expected=expected, per_cell=True)


def _weights(variant: Variant) -> Claim:
    scheme = served_scheme(variant)
    if scheme in UNQUANTIZED:
        return _once(
            "weights",
            f"{scheme} weights, not quantized",
            "the log shows the model's layers, none with quant=, and no kernel for "
            "quantized weights",
        )
    return _once(
        "weights",
        f"{scheme} weights run on a kernel made for them",
        "the log names such a kernel, shows quant= on the model's layers, and no fallback",
    )


def _speculation(variant: Variant) -> Claim:
    if variant.speculation is None:
        return _each(
            "speculation",
            "no speculation",
            "the speculation counters are absent or do not move",
        )
    return _each(
        "speculation",
        f"speculation by {speculation_words(variant)} has tokens accepted",
        "drafts and accepted tokens both rise over the timed requests",
    )


def _prefix_cache(variant: Variant) -> Claim:
    if not variant.prefix_cache:
        return _each(
            "prefix_cache",
            "no prefix cache",
            "the tokens looked up in the prefix cache do not rise",
        )
    return _each(
        "prefix_cache",
        "the prefix cache hits as often as the workload was built to let it",
        f"Δhits ÷ Δqueries within {HIT_RATE_MARGIN * 100:g} points of the workload's; "
        "without a warm-up, first uses of a shared prefix in flight together may miss as well",
    )
