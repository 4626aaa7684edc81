"""The words of an engine's log and the names of its counters, by engine; verified in its source.

Kernel names: vLLM 0.32 ``model_executor/kernels/linear`` (``_POSSIBLE_KERNELS``, CPU and CUDA) and
the lines ``Using %s for <scheme>`` and ``Selected %s for <scheme>`` of 0.26 to 0.33; whet's own
``TorchInt4LinearKernel`` serves CPUs without AVX-512.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COUNTERS_ALIVE: Final = "vllm:generation_tokens_total"
DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
QUERIES: Final = "vllm:prefix_cache_queries_total"
HITS: Final = "vllm:prefix_cache_hits_total"
LORA_RUNNING: Final = 'vllm:lora_requests_info{running_lora_adapters="'
"""A gauge of wall-clock seconds, one sample for every set of adapters that ran together.

The set is empty while only the bare model has requests.
"""
PROCESS_STARTED: Final = "process_start_time_seconds"
"""Another value is another process: its counters began anew."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemeKernels:
    """Kernels that run a scheme as it is meant, and those that only make it run."""

    native: frozenset[str]
    fallback: frozenset[str]


_WNA16_FALLBACK: Final = frozenset(
    {"ConchLinearKernel", "ExllamaLinearKernel", "TritonW4A16LinearKernel", "HummingLinearKernel"}
)

_BY_SCHEME: Final = {
    "W4A16": SchemeKernels(
        native=frozenset(
            {
                "CPUWNA16LinearKernel",
                "TorchInt4LinearKernel",  # ours, for CPUs without AVX-512
                "ZentorchWNA16LinearKernel",
                "MacheteLinearKernel",
                "MarlinLinearKernel",
            }
        ),
        fallback=_WNA16_FALLBACK,
    ),
    "W8A16": SchemeKernels(
        native=frozenset({"MacheteLinearKernel", "MarlinLinearKernel", "AllSparkLinearKernel"}),
        fallback=_WNA16_FALLBACK,
    ),
    "W8A8-INT8": SchemeKernels(
        native=frozenset(
            {
                "CPUInt8ScaledMMLinearKernel",
                "ZentorchInt8ScaledMMLinearKernel",
                "CutlassInt8ScaledMMLinearKernel",
            }
        ),
        fallback=frozenset({"TritonInt8ScaledMMLinearKernel", "HummingInt8ScaledMMLinearKernel"}),
    ),
    "FP8": SchemeKernels(
        native=frozenset(
            {
                "CutlassFP8ScaledMMLinearKernel",
                "FlashInferFP8ScaledMMLinearKernel",
                "B12xTensorFP8ScaledMMLinearKernel",
                "PerTensorTorchFP8ScaledMMLinearKernel",
            }
        ),
        fallback=frozenset(
            {
                "ChannelWiseTorchFP8ScaledMMLinearKernel",
                "RowWiseTorchFP8ScaledMMLinearKernel",
                "MarlinFP8ScaledMMLinearKernel",
                "TritonFP8ScaledMMLinearKernel",
                "HummingFP8ScaledMMLinearKernel",
            }
        ),
    ),
}

# A mixed checkpoint names a kernel for each of its schemes, and none of them may be a fallback.
KERNELS: Final = {
    **_BY_SCHEME,
    "mixed": SchemeKernels(
        native=frozenset().union(*(kernels.native for kernels in _BY_SCHEME.values())),
        fallback=frozenset().union(*(kernels.fallback for kernels in _BY_SCHEME.values())),
    ),
}

FORCED_KERNELS: Final = {"VLLM_TEST_FORCE_FP8_MARLIN": "MarlinFP8ScaledMMLinearKernel"}
"""Variables that ask for a kernel which is a fallback where nobody asked: FP8 Marlin reads 8 bits a
weight and computes in 16, without quantizing what comes in."""

NOTICES: Final = (
    r"Cannot use .* backend on CPU",
    r"Async scheduling (?:not supported|is disabled|will be disabled|is not compatible).*",
    r"CUDAGraphMode\.\w+ is not supported.*; setting cudagraph_mode=.*",
    r"Model Runner V2 (?:does not yet support|requires) .*",
    r"Overriding cudagraph_mode .*",
    r"Disabling cascade attention.*",
    r"Enforce eager set.*",
    r"(?:JIT compilation|autotuning) during inference.*",
    r"MLA is enabled on a non-GPU platform.*",
    r"Your GPU does not have native support for .*",
    r"--block-size .* precluded higher-priority backend.*",
    r"Failed to create oneDNN linear, fallback .*",
    r"Failed to find a kernel .*",
    r"Speculative decoding on CPU without Intel OpenMP .*",
    r"max_num_scheduled_tokens is set to .* based on the speculative decoding settings.*",
    r"lib(?:tcmalloc|iomp) is not found in LD_PRELOAD.*",
    r"Reducing Torch threads from .*",
    r"Using KV cache scaling factor 1\.0 for \w+",
)
"""Lines that say that something runs otherwise than asked, or slower than it could."""

NO_HARDWARE: Final = "Your GPU does not have native support for"
"""What vLLM's FP8 Marlin says of any GPU, one that was made to use it too."""

WEIGHT_FALLBACKS: Final = (NO_HARDWARE, "Failed to find a kernel")
"""Notices that contradict a claim about weights."""

UNIT_KV_SCALE: Final = "Using KV cache scaling factor 1.0 for"
"""All that a loaded FP8 KV cache is scaled by is 1.0: the engine's default, or stored so.

vLLM's ``layers/quantization/kv_cache.py``. Only of a checkpoint with scales of its own a fault.
"""

ASYNC_OFF: Final = r"Async scheduling (?:not supported|is disabled|will be disabled|is not compat)"
NO_GRAPHS: Final = r"Overriding cudagraph_mode .*to NONE|setting cudagraph_mode=NONE"
GRAPHS_CHANGED: Final = (
    r"(?:Overriding cudagraph_mode .*\bto |setting cudagraph_mode=)(?:CUDAGraphMode\.)?(\w+)"
)
