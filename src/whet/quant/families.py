"""Where a scale can be folded in the layers of known architectures, from their modelling code.

A family says which norm feeds the attention and which one the MLP. Which linears read the same
input follows from the tensors' names (``architecture``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """The norms straight before the attention and the MLP; None where there is not one.

    ``norm_offset`` is 1 where a norm multiplies by 1 + w.
    """

    attention_norm: str | None = "input_layernorm"
    mlp_norm: str | None = "post_attention_layernorm"
    norm_offset: float = 0.0


_LLAMA: Final = Family()
_GEMMA2: Final = Family(mlp_norm="pre_feedforward_layernorm", norm_offset=1.0)
_NORMS_AFTER: Final = Family(attention_norm=None, mlp_norm=None)
_LIKE_LLAMA: Final = (
    *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "granite", "mimo"),
    *("smollm3", "phi3"),
    *("seed_oss", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "olmoe", "glm4_moe", "dots1"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"),
)
FAMILIES: Final = {
    **dict.fromkeys(_LIKE_LLAMA, _LLAMA),
    "gemma": Family(norm_offset=1.0),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
    "olmo2": _NORMS_AFTER,
    "olmo3": _NORMS_AFTER,
}
"""By ``model_type`` of the text decoder."""
UNFOLDABLE: Final = {
    "qwen3_next": "a gate is fused into its q_proj, which folding would ruin",
    "qwen3_5": "a gate is fused into its q_proj, which folding would ruin",
}
"""Why other architectures, by the start of their ``model_type``, cannot take column scales."""
