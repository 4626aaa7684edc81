"""The recipe that each unquantized model takes, and how many linears it quantizes, by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AWQ: Final = "method: awq, scheme: W4A16, group_size: 128"
_AWQ_64: Final = "method: awq, scheme: W4A16, group_size: 64"
_GPTQ: Final = "method: gptq, scheme: W4A16, group_size: 128"
_FP8: Final = "method: rtn, scheme: FP8_DYNAMIC"
_ROUND: Final = "method: rtn, scheme: W4A16, group_size: 128"
_ROUND_64: Final = "method: rtn, scheme: W4A16, group_size: 64"


@dataclass(frozen=True, slots=True)
class Plan:
    """Quantized linears, the recipes that work, and words of the refusal of the default one."""

    linears: int
    recipes: tuple[str, ...] = (AWQ,)
    reason: str = ""


def _dense(layers: int) -> Plan:
    """q, k, v, o; gate, up, down."""
    return Plan(7 * layers)


def _fused(layers: int) -> Plan:
    """Phi: qkv, o; gate_up, down."""
    return Plan(4 * layers)


def _mlps(layers: int, experts: int, matrices: int = 3) -> int:
    """Linears of the experts, the shared one included."""
    return layers * experts * matrices


ONE_TENSOR: Final = Plan(0, (), "holds all experts of a layer")
_HALF_GROUP: Final = "has 10944 inputs, not a multiple of the group size 128"  # 85.5 × 128
_GATE: Final = "a gate is fused into its q_proj"
_UNKNOWN: Final = "does not know which layer precedes its linears"
PLANS: Final = {
    # q, kv_a, kv_b, o; one dense layer
    "DeepSeek-V2-Lite": Plan(27 * 4 + 3 + _mlps(26, 64 + 1), (_AWQ_64,), _HALF_GROUP),
    # its layers are transformer.h.N, and their linears have names of their own
    "Falcon-7b": Plan(0, (), "has no decoder layers"),
    "Falcon3-7B": _dense(28),
    "GLM-4.5-Air": Plan(46 * 4 + 3 + _mlps(45, 128 + 1), (_AWQ_64,), _HALF_GROUP),
    # q_a, q_b, kv_a, kv_b, o; 3 dense layers; the indexer stays in 16 bit
    "GLM-5": Plan(78 * 5 + 3 * 3 + _mlps(75, 256 + 1), (_FP8, _ROUND), _UNKNOWN),
    "Gemma-2-9b": _dense(42),
    "Gemma-3-1b": _dense(26),
    "Gemma-3-4b": _dense(34),
    "Gemma-3-12b": _dense(48),
    "Gemma-3-27b": _dense(62),
    "Gemma-4-26B-A4B": ONE_TENSOR,
    "Granite-3.3-8b": _dense(40),
    "Granite-4.0-h-tiny": ONE_TENSOR,
    "Llama-3.1-70B": _dense(80),
    "Llama-3.1-8B": _dense(32),
    "Llama-3.2-1B": _dense(16),
    "Llama-3.2-3B": _dense(28),
    "Llama-4-Scout": ONE_TENSOR,
    # transformers has no code for it; its MTP layer stays in 16 bit
    "MiMo-7B": Plan(7 * 36, (_FP8, _ROUND), "transformers has no code of its own"),
    "Mistral-7B-v0.1": _dense(32),
    "Mistral-7B-v0.3": _dense(32),
    "Mistral-Nemo-12B": _dense(40),
    "Mistral-Small-3.1-24B": _dense(40),
    "Mixtral-8x7B": Plan(32 * 4 + _mlps(32, 8)),
    # 6 layers of attention, 23 of Mamba (in, out), 23 of experts; 1856 = 14.5 × 128 inputs
    "Nemotron-3-Nano-30B": Plan(
        6 * 4 + 23 * 2 + _mlps(23, 128 + 1, 2), (_FP8, _ROUND_64), _UNKNOWN,
    ),
    "OLMo-2-7B": _dense(32),
    "Phi-3.5-mini": _fused(32),
    "Phi-4": _fused(40),
    "Phi-4-mini": _fused(32),
    "Qwen2.5-7B": _dense(28),
    "Qwen2.5-VL-7B": _dense(28),
    "Qwen3-30B-A3B": Plan(48 * 4 + _mlps(48, 128)),
    "Qwen3-32B": _dense(64),
    "Qwen3-8B": _dense(36),
    # 12 layers of attention, 36 of a delta net: in_proj_qkvz, out_proj
    "Qwen3-Next-80B-A3B": Plan(12 * 4 + 36 * 2 + _mlps(48, 512 + 1), (_GPTQ,), _GATE),
    "Qwen3-VL-30B-A3B": ONE_TENSOR,
    "Qwen3-VL-8B": _dense(36),
    # 16 layers of attention, 48 of a delta net: in_proj_qkv, in_proj_z, out_proj
    "Qwen3.5-27B": Plan(16 * 4 + 48 * 3 + 64 * 3, (_GPTQ,), _GATE),
    "Qwen3.5-35B-A3B": ONE_TENSOR,
    "gpt-oss-20b-BF16": ONE_TENSOR,
    # as GLM-5's
    "GLM-5.2": Plan(78 * 5 + 3 * 3 + _mlps(75, 256 + 1), (_FP8, _ROUND), _UNKNOWN),
    # two attentions and two MLPs a layer
    "LongCat-Flash": Plan(28 * (2 * 5 + 2 * 3 + 512 * 3), (_FP8, _ROUND), _UNKNOWN),
    # 12 layers of attention, 48 of Mamba, 48 of experts between two projections of a latent
    "Nemotron-3-Ultra-550B": Plan(
        12 * 4 + 48 * 2 + _mlps(48, 512 + 1 + 1, 2), (_FP8, _ROUND), _UNKNOWN
    ),
    # q, k, v, o and a gate; one dense layer
    "Laguna-XS": Plan(40 * 5 + 3 + _mlps(39, 256 + 1), (_GPTQ,), _UNKNOWN),
    "Step-3.7-Flash": ONE_TENSOR,
    "Hy3-295B": Plan(80 * 4 + 3 + _mlps(79, 192 + 1), (_GPTQ,), _UNKNOWN),
    "ERNIE-4.5-21B-A3B": Plan(28 * 4 + 3 + _mlps(27, 64 + 1), (_GPTQ,), _UNKNOWN),
    # 6 layers of attention, 18 of a convolution (in, out); 2 dense layers
    "LFM2-8B-A1B": Plan(6 * 4 + 18 * 2 + 2 * 3 + _mlps(22, 32), (_GPTQ,), _UNKNOWN),
    # 6 layers of latent attention, 21 of a delta net: q, k, v, b, o, two halves of f and of g
    "Kimi-Linear-48B": Plan(6 * 4 + 21 * 9 + 3 + _mlps(26, 256 + 1), (_GPTQ,), _UNKNOWN),
    # attention and Mamba (in, out) in each layer
    "Falcon-H1": Plan(32 * (4 + 2 + 3), (_FP8, _ROUND), _UNKNOWN),
    # 8 layers of attention, 24 of a delta net: q, k, v, a, b, g, o
    "OLMo-Hybrid-7B": Plan(8 * 4 + 24 * 7 + 32 * 3, (_GPTQ,), _UNKNOWN),
    # 11 layers of latent attention, 34 of a delta net; 3 dense layers
    "GLM-5-next": Plan(
        11 * 5 + 34 * 9 + 3 * 3 + _mlps(42, 288 + 1), (_FP8, _ROUND), _UNKNOWN
    ),
}  # fmt: skip
"""By name, for the default recipe. The other models are quantized already."""
