"""4-bit weights on CPUs without AVX-512: PyTorch's own int4 matmul as a vLLM linear kernel.

vLLM's CPU kernel for W4A16 is compiled for AVX-512 and later only. On an x86 machine that stops at
AVX2 a W4A16 server starts, selects that kernel, reports healthy and dies on its first request.
PyTorch has an int4 matmul with an AVX2 path, and vLLM has a plug-in point for linear kernels; this
file joins the two. vLLM loads it in each of its processes (``vllm.general_plugins``), and it does
nothing on any machine where vLLM's own kernel exists.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

KERNEL_NAME: Final = "TorchInt4LinearKernel"
REPLACED: Final = "CPUWNA16LinearKernel"
_GROUP_SIZES: Final = (32, 64, 128, 256)
_OUTPUT_MULTIPLE: Final = 16


def register() -> None:
    """Offer the kernel to vLLM where its own cannot run. Entry point; called by vLLM."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or hasattr(torch.ops._C, "cpu_gemm_wna16"):
        return
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.platforms import PlatformEnum

    register_linear_kernel(_kernel_class(), PlatformEnum.CPU)


@cache
def _kernel_class() -> type[Any]:
    """The class, built late: its base exists only where vLLM is installed."""
    import torch
    from vllm.model_executor.kernels.linear import MPLinearKernel
    from vllm.model_executor.layers.quantization.utils.quant_utils import (
        unpack_quantized_values_into_int32,
    )
    from vllm.scalar_type import scalar_types

    class TorchInt4LinearKernel(MPLinearKernel):
        """int4 in groups: ``y = x · ((q − 8) · s + z)ᵀ``, z = (8 − zero) · s and 0 if symmetric."""

        @classmethod
        def get_min_capability(cls) -> int:
            return -1

        @classmethod
        def can_implement(cls, c: Any) -> tuple[bool, str | None]:
            if c.weight_type not in (scalar_types.uint4b8, scalar_types.uint4):
                return False, "only 4-bit weights"
            if c.group_size not in _GROUP_SIZES:
                return False, f"group size {c.group_size} is not in {_GROUP_SIZES}"
            inputs, outputs = c.partition_weight_shape
            if outputs % _OUTPUT_MULTIPLE or inputs % c.group_size:
                return False, f"shape {c.partition_weight_shape} does not divide"
            return True, None

        def process_weights_after_loading(self, layer: Any) -> None:
            packed, scales = getattr(layer, self.w_q_name), getattr(layer, self.w_s_name)
            values = unpack_quantized_values_into_int32(
                packed.data, self.config.weight_type, packed.packed_dim
            )
            if packed.output_dim == 1:
                values = values.t()
            if scales.output_dim == 0:
                scales.data = scales.data.t()
            packed.data = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.contiguous(), 1)
            shift = torch.zeros_like(scales.data)
            if self.config.zero_points:
                zeros = getattr(layer, str(self.w_zp_name))
                levels = unpack_quantized_values_into_int32(
                    zeros.data, self.config.weight_type, zeros.packed_dim
                )
                levels = levels.t() if zeros.output_dim == 0 else levels
                shift = (8 - levels).to(scales.dtype) * scales.data
            # Only the bfloat16 path is vectorised; the others are 30 times slower.
            pairs = torch.stack([scales.data, shift], dim=-1)
            scales.data = pairs.to(torch.bfloat16).contiguous()

        def apply_weights(self, layer: Any, x: Any, bias: Any = None) -> Any:
            weight, scales, _ = self._get_weight_params(layer)
            flat = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(
                flat, weight, self.config.group_size, scales
            ).to(x.dtype)
            if bias is not None:
                y = y + bias
            return y.reshape(*x.shape[:-1], y.shape[-1])

    return TorchInt4LinearKernel
