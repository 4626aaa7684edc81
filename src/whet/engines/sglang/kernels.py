"""The schemes of SGLang's quantized layers, and its attention backends, from its source (0.5.17).

Each class of ``layers/quantization/compressed_tensors/schemes`` calls one family of kernels:
``WNA16`` Marlin, ``W8A8Fp8`` and ``W8A8Int8`` CUTLASS, ``W8A16Fp8`` Marlin on a GPU without FP8.
"""

from __future__ import annotations

from typing import Final

from whet.engines.base import Kernels, SchemeKernels

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
