"""Where a scale can be folded in the layers of known architectures, from their modelling code.

A family says which norm feeds the attention and which one the MLP. Which linears read the same
input follows from the tensors' names (``architecture``).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
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
    *("llama", "mistral", "ministral", "qwen2", "qwen3", "granite", "mimo", "smollm3", "phi3"),
    *("seed_oss", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl_text"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "olmoe", "glm4_moe", "dots1"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2"),
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
NOT_ALONE: Final = dict.fromkeys(
    ("glm_moe_dsa", "nemotron_h", "bamba"), "transformers does not run one of them alone"
)
"""Why the inputs of an architecture's layers, by the start of its name, are not measured."""


def in_transformers(model_type: str) -> bool:
    """Whether the installed transformers has code for an architecture."""
    name, package = model_type.removesuffix("_text"), find_spec("transformers")
    # The list of all takes seconds to import, as torch comes with it. These are in it by name.
    folder = Path((package and package.origin) or "").parent / "models" / name
    if model_type in FAMILIES and package is not None and folder.is_dir():
        return True
    from transformers.models.auto import configuration_auto

    known = configuration_auto.CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]
    return model_type in known or name in known
