"""The names of vLLM's kernels and the wording of its log, verified in its source.

Kernel names: vLLM 0.32 ``model_executor/kernels/linear`` (``_POSSIBLE_KERNELS``, CPU and CUDA), the
backends of ``layers/fused_moe/oracle``, and the lines ``Using %s for <scheme>`` and ``Selected %s
for <scheme>`` of 0.26 to 0.33; whet's own ``TorchInt4LinearKernel`` serves CPUs without AVX-512.
"""

from __future__ import annotations

from typing import Final

from whet.engines.base import Kernels, Patterns, SchemeKernels

_WNA16_FALLBACK: Final = frozenset(
    {"ConchLinearKernel", "ExllamaLinearKernel", "TritonW4A16LinearKernel"}
)


def _experts(kind: str, *backends: str) -> frozenset[str]:
    """Kernels of routed experts as ``EngineFacts.weight_kernels`` names them."""
    return frozenset(f"{kind}MoE-{backend}" for backend in backends)


_DEEPGEMM: Final = ("DEEPGEMM", "BATCHED_DEEPGEMM", "VLLM_CUTLASS", "BATCHED_VLLM_CUTLASS")
_MARLIN: Final = ("MARLIN", "BATCHED_MARLIN")
_TRITON: Final = ("TRITON", "BATCHED_TRITON", "TRITON_UNFUSED")
_SLOW: Final = ("EMULATION", "HUMMING")
_FP8_EXPERTS: Final = _experts("Fp8", *_DEEPGEMM, *_TRITON, "CPU", "CPU_W8A8") | _experts(
    "Fp8", "FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS"
)
_FP8_SLOW_EXPERTS: Final = _experts("Fp8", *_SLOW, "MARLIN")
_BY_SCHEME: Final = {
    "W4A16": SchemeKernels(
        native=_experts("WNA16", *_MARLIN, "FLASHINFER_TRTLLM", "CPU", "ZEN_CPU", "HUMMING")
        | frozenset(
            {
                "CPUWNA16LinearKernel",
                "TorchInt4LinearKernel",  # ours, for CPUs without AVX-512
                "ZentorchWNA16LinearKernel",
                "MacheteLinearKernel",
                "MarlinLinearKernel",
                "HummingLinearKernel",
            }
        ),
        fallback=_WNA16_FALLBACK | _experts("WNA16", "EMULATION"),
    ),
    "W8A16": SchemeKernels(
        native=frozenset({"MacheteLinearKernel", "MarlinLinearKernel", "AllSparkLinearKernel"})
        | {"HummingLinearKernel"},
        fallback=_WNA16_FALLBACK,
    ),
    "W4A8_FP8": SchemeKernels(
        native=frozenset({"CutlassW4A8LinearKernel", "HummingLinearKernel"}),
        fallback=_WNA16_FALLBACK,
        weight_only=frozenset({"MacheteLinearKernel", "MarlinLinearKernel"}),
        method="CompressedTensorsW4A8Fp8",
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
    "FP8_BLOCK": SchemeKernels(
        native=_FP8_EXPERTS
        | frozenset(
            {
                "FlashInferFp8DeepGEMMDynamicBlockScaledKernel",
                "DeepGemmFp8BlockScaledMMKernel",
                "CutlassFp8BlockScaledMMKernel",
                "B12xFp8BlockScaledMMKernel",
                "CPUFp8W8A8BlockScaledMMKernel",
            }
        ),
        fallback=_FP8_SLOW_EXPERTS
        | frozenset(
            {
                "TritonFp8BlockScaledMMKernel",
                "BlockWiseTorchFP8ScaledMMLinearKernel",
                "MarlinFP8ScaledMMLinearKernel",
                "HummingFP8ScaledMMLinearKernel",
            }
        ),
        weight_only=frozenset({"CPUFp8BlockScaledMMKernel"}),
    ),
    "FP8": SchemeKernels(
        native=_FP8_EXPERTS
        | frozenset(
            {
                "CutlassFP8ScaledMMLinearKernel",
                "FlashInferFP8ScaledMMLinearKernel",
                "B12xTensorFP8ScaledMMLinearKernel",
                "PerTensorTorchFP8ScaledMMLinearKernel",
                "CPUFP8W8A8ScaledMMLinearKernel",
                "CPUFp8PerTensorScaledMMLinearKernel",
            }
        ),
        fallback=_FP8_SLOW_EXPERTS
        | frozenset(
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

_MXFP4_16: Final = (
    _experts("Mxfp4", *_MARLIN, *_TRITON, "CPU", "B12X_MXFP4_BF16", "HUMMING")
    | _experts("Mxfp4", "FLASHINFER_TRTLLM_MXFP4_BF16", "FLASHINFER_CUTLASS_MXFP4_BF16")
    | {"HummingMxFp4LinearKernel", "MarlinMxFp4LinearKernel"}
)
"""The kernels that read MXFP4 weights and compute in 16 bit."""
_MXFP4_FEWER: Final = _experts("Mxfp4", "DEEPGEMM_MXFP4", "CUTLASS_MXFP4_MXFP4") | _experts(
    "Mxfp4", "FLASHINFER_TRTLLM_MXFP4_MXFP8", "FLASHINFER_CUTLASS_MXFP4_MXFP8", "B12X_MXFP4_MXFP8"
)
_MXFP4_LINEAR: Final = frozenset({"B12xMxFp4LinearKernel", "FlashInferMxFp4LinearKernel"})
_MXFP4_SLOW: Final = _experts("Mxfp4", "EMULATION") | {"EmulationMxfp4LinearKernel"}
_NVFP4_16: Final = _experts("NvFp4", "MARLIN") | {
    "B12xNvFp4W4A16LinearKernel",
    "FlashInferCuteDslNvFp4W4A16LinearKernel",
    "MarlinNvFp4LinearKernel",
}
"""As ``_POSSIBLE_NVFP4_KERNELS`` of 0.33 allows without activations in 4 bits."""
_NVFP4_HUMMING: Final = _experts("NvFp4", "HUMMING") | {"HummingNvFp4LinearKernel"}
_NVFP4_SLOW: Final = _experts("NvFp4", "EMULATION") | {"EmulationNvFp4LinearKernel"}
_FOUR_BIT_FLOATS: Final = {
    "MXFP4": SchemeKernels(
        native=_MXFP4_16 | _MXFP4_FEWER | _MXFP4_LINEAR,
        fallback=_MXFP4_SLOW,
    ),
    "MXFP4-W4A4": SchemeKernels(
        native=_MXFP4_LINEAR | _experts("Mxfp4", "CUTLASS_MXFP4_MXFP4"),
        fallback=_MXFP4_SLOW,
        weight_only=_MXFP4_16,
    ),
    "NVFP4A16": SchemeKernels(native=_NVFP4_16 | _NVFP4_HUMMING, fallback=_NVFP4_SLOW),
    "NVFP4": SchemeKernels(
        native=_experts("NvFp4", "FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS", "FLASHINFER_CUTEDSL")
        | _experts("NvFp4", "FLASHINFER_CUTEDSL_BATCHED", "FLASHINFER_B12X", "VLLM_CUTLASS", "B12X")
        | {
            "B12xNvFp4LinearKernel",
            "CutlassNvFp4LinearKernel",
            "FbgemmNvFp4LinearKernel",
            "FlashInferB12xNvFp4LinearKernel",
            "FlashInferCudnnNvFp4LinearKernel",
            "FlashInferCuteDslNvFp4LinearKernel",
            "FlashInferCutlassNvFp4LinearKernel",
            "FlashInferTrtllmNvFp4LinearKernel",
            "TorchNvFp4LinearKernel",
        },
        fallback=_NVFP4_SLOW | _NVFP4_HUMMING,
        weight_only=_NVFP4_16,
    ),
}

# A mixed checkpoint names a kernel for each of its schemes, and none of them may be a fallback.
_SCHEMES: Final = {
    **_BY_SCHEME,
    **_FOUR_BIT_FLOATS,
    "mixed": SchemeKernels(
        native=frozenset().union(*(kernels.native for kernels in _BY_SCHEME.values())),
        fallback=frozenset().union(*(kernels.fallback for kernels in _BY_SCHEME.values())),
    ),
}

_FORCED: Final = {"VLLM_TEST_FORCE_FP8_MARLIN": "MarlinFP8ScaledMMLinearKernel"}
"""Variables that ask for a kernel which is a fallback where nobody asked: FP8 Marlin reads 8 bits a
weight and computes in 16, without quantizing what comes in."""

_LIBRARIES: Final = {
    "aiter": "Aiter",
    "b12x": "B12x",
    "conch": "Conch",
    "cutlass": "Cutlass",
    "deep_gemm": "DeepGemm",
    "emulation": "Emulation",
    "exllama": "Exllama",
    "fbgemm": "Fbgemm",
    "flashinfer_b12x": "FlashInferB12x",
    "flashinfer_cudnn": "FlashInferCudnn",
    "flashinfer_cutedsl": "FlashInferCute[Dd]sl",
    "flashinfer_cutlass": "FlashInfer(?:Cutlass|FP8|Fp8|MxFp4)",
    "flashinfer_trtllm": "FlashInferTrtllm",
    "humming": "Humming",
    "machete": "Machete",
    "marlin": "Marlin",
    "torch": "(?:PerTensor|ChannelWise|RowWise|BlockWise)?Torch",
    "triton": "Triton",
}
"""How the kernels begin that ``--linear-backend`` takes (``_LINEAR_BACKEND_KERNEL_MAP``, 0.33)."""

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
    r"--linear-backend=\w+ (?:has no kernel for|was requested, but) .*",
    r"VLLM_BATCH_INVARIANT overrides --linear-backend.*",
    r"Speculative decoding on CPU without Intel OpenMP .*",
    r"max_num_scheduled_tokens is set to .* based on the speculative decoding settings.*",
    r"lib(?:tcmalloc|iomp) is not found in LD_PRELOAD.*",
    r"Reducing Torch threads from .*",
    r"Using KV cache scaling factor 1\.0 for \w+",
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
    schemes=_SCHEMES,
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
