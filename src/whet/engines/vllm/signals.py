"""The wording of vLLM's log, verified in its source; its kernels by scheme are in kernels.csv.

Kernel names: vLLM 0.32 ``model_executor/kernels/linear`` (``_POSSIBLE_KERNELS``, CPU and CUDA), the
backends of ``layers/fused_moe/oracle``, and the lines ``Using %s for <scheme>`` and ``Selected %s
for <scheme>`` of 0.26 to 0.33; whet's own ``TorchInt4LinearKernel`` serves CPUs without AVX-512.
Of NVFP4, ``weight_only`` are those that ``_POSSIBLE_NVFP4_KERNELS`` of 0.33 allows in 16 bits.
"""

from __future__ import annotations

from collections import defaultdict
from importlib import resources
from typing import Final

from whet.engines.base import Kernels, Patterns, SchemeKernels
from whet.engines.failures import read_table

_W4A8_METHOD: Final = "CompressedTensorsW4A8Fp8"


def _scheme_kernels() -> dict[str, SchemeKernels]:
    """The rows of ``kernels.csv`` by scheme; kernels of routed experts are ``KINDMoE-BACKEND``.

    A mixed checkpoint names a kernel for each of its schemes, and none of them may be a fallback.
    """
    roles: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in read_table("vllm", "kernels"):
        roles[row["scheme"]][row["role"]].add(row["kernel"])
        if "FP4" not in row["scheme"]:
            roles["mixed"][row["role"]].add(row["kernel"])
    return {
        scheme: SchemeKernels(
            native=frozenset(own["native"]),
            fallback=frozenset(own["fallback"]),
            weight_only=frozenset(own["weight_only"] if scheme != "mixed" else ()),
            method=_W4A8_METHOD if scheme == "W4A8_FP8" else "",
        )
        for scheme, own in roles.items()
    }


_FORCED: Final = {"VLLM_TEST_FORCE_FP8_MARLIN": "MarlinFP8ScaledMMLinearKernel"}
"""Variables that ask for a kernel which is a fallback where nobody asked: FP8 Marlin reads 8 bits a
weight and computes in 16, without quantizing what comes in."""

_LIBRARIES: Final = {row["library"]: row["kernels"] for row in read_table("vllm", "libraries")}
"""How the kernels begin that ``--linear-backend`` takes (``_LINEAR_BACKEND_KERNEL_MAP``, 0.33)."""

NOTICES: Final = "|".join(
    resources.files(__package__).joinpath("notices.txt").read_text(encoding="utf-8").splitlines()
)
"""Lines that report something slower or other than requested."""

_NO_HARDWARE: Final = "Your GPU does not have native support for"
"""vLLM's FP8 Marlin logs this on every GPU, also where it was requested."""

PATTERNS: Final = Patterns(
    async_off=r"Async scheduling (?:not supported|is disabled|will be disabled|is not compat)",
    no_graphs=r"Overriding cudagraph_mode .*to NONE|setting cudagraph_mode=NONE",
    graphs_changed=(
        r"(?:Overriding cudagraph_mode .*\bto |setting cudagraph_mode=)(?:CUDAGraphMode\.)?(\w+)"
    ),
    attention_refused=r"Cannot use|precluded higher-priority backend",
    # All that a loaded FP8 KV cache is scaled by is 1.0: vLLM's default, or stored so
    # (``layers/quantization/kv_cache.py``); a fault only of a checkpoint with scales of its own.
    unit_kv_scale=r"Using KV cache scaling factor 1\.0 for",
    kernels_refused=r"--linear-backend",
    v1_runner=r"using the V1 model runner instead",
    no_hardware=_NO_HARDWARE,
    weight_fallbacks=(_NO_HARDWARE, "Failed to find a kernel"),
)

_ATTENTION: Final = {
    "CPUAttentionBackendImpl": "CPU_ATTN",
    "FlashAttentionImpl": "FLASH_ATTN",
    "TritonAttentionImpl": "TRITON_ATTN",
    "FlashInferImpl": "FLASHINFER",
    "FlexAttentionImpl": "FLEX_ATTENTION",
}

_LOAD_TIME: Final = {
    "fp8": "FP8",
    "fp8_per_tensor": "FP8",
    "fp8_per_block": "FP8_BLOCK",
    "fp8_per_channel": "FP8",
    "bitsandbytes": "BNB",
    "gguf": "GGUF",
}
"""What vLLM makes of 16-bit weights as it loads them, by ``--quantization``."""

KERNELS: Final = Kernels(
    schemes=_scheme_kernels(),
    forced=_FORCED,
    libraries=_LIBRARIES,
    load_time=_LOAD_TIME,
    attention=_ATTENTION,
)

SETTING_SECTIONS: Final = (
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
"""Where a flag's resolved value is looked up in ``/server_info``, the likeliest first."""
