"""What is published of each model, and its KV cache worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    """Published parameters in billions, and bytes that layers keep at 16 bits.

    ``full`` lists (layers, bytes a token and layer), ``windows`` (layers, bytes, tokens), ``state``
    (layers, bytes a request and layer). ``mtp`` are the billions of the layers for multi-token
    prediction, ``idle`` the parameters of experts that a token does not use. ``vllm`` are the bytes
    that vLLM 0.32's own specs come to for one request of 32,768 tokens (16,384 in flight); None
    where they were not asked.
    """

    billions: float
    full: tuple[tuple[int, int], ...] = ()
    windows: tuple[tuple[int, int, int], ...] = ()
    state: tuple[int, int] | None = None
    mtp: float = 0.0
    idle: int = 0
    scheme: str = "16bit"
    group: int | None = None
    vllm: int | None = 0


def _kv(heads: int, width: int) -> int:
    """Keys and values at 2 bytes."""
    return 2 * heads * width * 2


def _experts(layers: int, idle: int, hidden: int, width: int, matrices: int = 3) -> int:
    return layers * idle * matrices * hidden * width


def _delta_net(keys: int, values: int, size: int) -> int:
    """The last 3 inputs of the convolution, and a matrix of 128 × 128 a value head."""
    return (2 * keys * 128 + values * 128) * 3 * 2 + values * 128 * 128 * size


def _llama_4(scheme: str) -> Truth:
    return Truth(
        billions=108.64,
        full=((12, _kv(8, 128)),),
        windows=((36, _kv(8, 128), 8192),),
        idle=_experts(48, 15, 5120, 8192),
        scheme=scheme,
        vllm=5_234_491_392,
    )


LATENT: Final = 2 * (512 + 64)
INDEX: Final = 128 + 4  # an FP8 key and its scale
_QWEN25: Final = (28, _kv(4, 128))
_QWEN3_MOE: Final = _experts(48, 120, 2048, 768)
TRUTH: Final[dict[str, Truth]] = {
    "DeepSeek-V2-Lite": Truth(
        billions=15.71, full=((27, LATENT),), idle=_experts(26, 58, 2048, 1408)
    ),
    "DeepSeek-V3": Truth(
        billions=671.03, full=((61, LATENT),), mtp=13.5, idle=_experts(58, 248, 7168, 2048),
        scheme="FP8_BLOCK",
    ),
    "Falcon-7b": Truth(billions=6.92, full=((32, _kv(1, 64)),)),
    "Falcon3-7B": Truth(billions=7.46, full=((28, _kv(4, 256)),)),
    "GLM-4.5-Air": Truth(
        billions=106.85, full=((46, _kv(8, 128)),), mtp=3.62, idle=_experts(45, 120, 4096, 1408)
    ),
    "GLM-5": Truth(
        billions=744.0, full=((78, LATENT), (78, INDEX)), idle=_experts(75, 248, 6144, 2048)
    ),
    "Gemma-2-9b": Truth(
        billions=9.24, full=((21, _kv(8, 256)),), windows=((21, _kv(8, 256), 4096),),
        vllm=9_163_112_448,
    ),
    "Gemma-3-1b": Truth(
        billions=1.0, full=((4, _kv(1, 256)),), windows=((22, _kv(1, 256), 512),),
        vllm=549_847_040,
    ),
    "Gemma-3-4b": Truth(
        billions=4.3, full=((5, _kv(4, 256)),), windows=((29, _kv(4, 256), 1024),),
        vllm=2_812_149_760,
    ),
    "Gemma-3-12b": Truth(
        billions=12.19, full=((8, _kv(8, 256)),), windows=((40, _kv(8, 256), 1024),),
        vllm=7_856_979_968,
    ),
    "Gemma-3-27b": Truth(
        billions=27.43, full=((10, _kv(16, 128)),), windows=((52, _kv(16, 128), 1024),),
        vllm=11_248_599_040,
    ),
    "Gemma-4-26B-A4B": Truth(
        billions=25.8, full=((5, _kv(2, 512)),), windows=((25, _kv(8, 256), 1024),),
        idle=_experts(30, 120, 2816, 704),
        vllm=4_239_523_840,
    ),
    "Granite-3.3-8b": Truth(billions=8.17, full=((40, _kv(8, 128)),)),
    "Granite-4.0-h-tiny": Truth(
        billions=6.94, full=((4, _kv(4, 128)),), state=(36, 3328 * 3 * 2 + 48 * 64 * 128 * 2),
        idle=_experts(40, 58, 1536, 512),
        vllm=298_188_800,
    ),
    "Kimi-K2": Truth(
        billions=1026.4, full=((61, LATENT),), idle=_experts(60, 376, 7168, 2048),
        scheme="FP8_BLOCK",
    ),
    "Llama-3.1-70B": Truth(billions=70.55, full=((80, _kv(8, 128)),)),
    "Llama-3.1-8B": Truth(billions=8.03, full=((32, _kv(8, 128)),)),
    "Llama-3.2-1B": Truth(billions=1.236, full=((16, _kv(8, 64)),)),
    "Llama-3.2-3B": Truth(billions=3.213, full=((28, _kv(8, 128)),)),
    "Llama-4-Scout": _llama_4("16bit"),
    "MiMo-7B": Truth(billions=7.62, full=((36, _kv(8, 128)),), mtp=0.211),
    "MiniMax-M2.5": Truth(
        billions=228.7, full=((62, _kv(8, 128)),), idle=_experts(62, 248, 3072, 1536),
        scheme="FP8_BLOCK",
    ),
    "Mistral-7B-v0.1": Truth(
        billions=7.242, windows=((32, _kv(8, 128), 4096),), vllm=2_686_451_712
    ),
    "Mistral-7B-v0.3": Truth(billions=7.248, full=((32, _kv(8, 128)),)),
    "Mistral-Nemo-12B": Truth(billions=12.25, full=((40, _kv(8, 128)),)),
    "Mistral-Small-3.1-24B": Truth(billions=24.01, full=((40, _kv(8, 128)),)),
    "Mixtral-8x7B": Truth(
        billions=46.70, full=((32, _kv(8, 128)),), idle=_experts(32, 6, 4096, 14336)
    ),
    "Nemotron-3-Nano-30B": Truth(
        billions=31.58, full=((6, _kv(2, 128)),), state=(23, 6144 * 3 * 2 + 64 * 64 * 128 * 4),
        idle=_experts(23, 122, 2688, 1856, 2),
        vllm=257_556_480,
    ),
    "OLMo-2-7B": Truth(billions=7.30, full=((32, _kv(32, 128)),)),
    "Phi-3.5-mini": Truth(billions=3.82, full=((32, _kv(32, 96)),)),
    "Phi-4": Truth(billions=14.66, full=((40, _kv(10, 128)),)),
    "Phi-4-mini": Truth(billions=3.836, full=((32, _kv(8, 128)),)),
    "Qwen2.5-7B": Truth(billions=7.616, full=(_QWEN25,)),
    "Qwen2.5-VL-7B": Truth(billions=8.292, full=(_QWEN25,)),
    "Qwen3-30B-A3B": Truth(billions=30.53, full=((48, _kv(4, 128)),), idle=_QWEN3_MOE),
    "Qwen3-32B": Truth(billions=32.76, full=((64, _kv(8, 128)),)),
    "Qwen3-8B": Truth(billions=8.191, full=((36, _kv(8, 128)),)),
    "Qwen3-Next-80B-A3B": Truth(
        billions=79.67, full=((12, _kv(2, 256)),), state=(36, _delta_net(16, 32, 2)), mtp=1.65,
        idle=_experts(48, 502, 2048, 512),
        vllm=855_638_016,
    ),
    "Qwen3-VL-30B-A3B": Truth(billions=31.07, full=((48, _kv(4, 128)),), idle=_QWEN3_MOE),
    "Qwen3-VL-8B": Truth(billions=8.767, full=((36, _kv(8, 128)),)),
    "Qwen3.5-27B": Truth(
        billions=27.36, full=((16, _kv(4, 256)),), state=(48, _delta_net(16, 48, 4)), mtp=0.425,
        vllm=2_312_110_080,
    ),
    "Qwen3.5-35B-A3B": Truth(
        billions=35.1, full=((10, _kv(2, 256)),), state=(30, _delta_net(16, 32, 4)), mtp=0.845,
        idle=_experts(40, 248, 2048, 512),
        vllm=756_940_800,
    ),
    "gpt-oss-20b": Truth(
        billions=20.91, full=((12, _kv(8, 64)),), windows=((12, _kv(8, 64), 128),),
        idle=_experts(24, 28, 2880, 2880), scheme="MXFP4", group=32,
        vllm=1_211_498_496,
    ),
    "gpt-oss-20b-BF16": Truth(
        billions=20.91, full=((12, _kv(8, 64)),), windows=((12, _kv(8, 64), 128),),
        idle=_experts(24, 28, 2880, 2880),
        vllm=1_211_498_496,
    ),
    "Llama-4-Scout-FP8-dynamic": _llama_4("FP8"),
    "Mixtral-8x7B-AWQ": Truth(
        billions=46.70, full=((32, _kv(8, 128)),), idle=_experts(32, 6, 4096, 14336),
        scheme="W4A16", group=128,
    ),
    **{
        f"Qwen2.5-7B-{name}": Truth(billions=7.616, full=(_QWEN25,), scheme=scheme, group=group)
        for name, scheme, group in (
            ("AWQ", "W4A16", 128),
            ("FP8-dynamic", "FP8", None),
            ("GPTQ-Int4", "W4A16", 128),
            ("GPTQ-Int8", "W8A16", 128),
            ("GPTQ-lm_head", "W4A16", 128),
            ("NVFP4-ct", "NVFP4", 16),
            ("W4A16-ct", "W4A16", 128),
            ("W8A8", "W8A8-INT8", None),
            ("bnb-4bit", "NF4", 64),
        )
    },
    "Qwen3-30B-A3B-FP8": Truth(
        billions=30.53, full=((48, _kv(4, 128)),), idle=_QWEN3_MOE, scheme="FP8_BLOCK"
    ),
    "Qwen3-32B-FP8": Truth(billions=32.76, full=((64, _kv(8, 128)),), scheme="FP8_BLOCK"),
    "Qwen3-32B-FP8-Static": Truth(billions=32.76, full=((64, _kv(8, 128)),), scheme="FP8"),
    # parameters of the last seven are those of transformers' classes
    "GLM-5.2": Truth(
        billions=743.4, full=((78, LATENT), (21, INDEX)), idle=_experts(75, 248, 6144, 2048)
    ),
    "Kimi-K2.5": Truth(
        billions=1026.4, full=((61, LATENT),), idle=_experts(60, 376, 7168, 2048),
        scheme="W4A16", group=32,
    ),
    "LongCat-Flash": Truth(  # two attentions a layer
        billions=560.7, full=((2 * 28, LATENT),), idle=_experts(28, 500, 6144, 2048)
    ),
    "MiMo-V2-Flash": Truth(  # keys of 192 and values of 128 numbers
        billions=308.8, full=((9, 4 * 320 * 2),), windows=((39, 8 * 320 * 2, 128),),
        idle=_experts(47, 248, 4096, 2048), scheme="FP8_BLOCK", vllm=None,
    ),
    "Nemotron-3-Ultra-550B": Truth(  # experts of a latent of 2,048
        billions=549.3, full=((12, _kv(2, 128)),),
        state=(48, (256 * 64 + 2 * 8 * 128) * 3 * 2 + 256 * 64 * 128 * 4),
        idle=_experts(48, 490, 2048, 5120, 2), vllm=None,
    ),
    "Laguna-XS": Truth(
        billions=33.44, full=((10, _kv(8, 128)),), windows=((30, _kv(8, 128), 512),),
        idle=_experts(39, 248, 2048, 512), vllm=None,
    ),
    "Step-3.7-Flash": Truth(
        billions=197.8, full=((12, _kv(8, 128)),), windows=((33, _kv(8, 128), 512),),
        idle=_experts(42, 280, 4096, 1280), vllm=None,
    ),
    "Hy3-295B": Truth(
        billions=295.0, full=((80, _kv(8, 128)),), idle=_experts(79, 184, 4096, 1536)
    ),
    "ERNIE-4.5-21B-A3B": Truth(
        billions=21.83, full=((28, _kv(4, 128)),), idle=_experts(27, 58, 2560, 1536)
    ),
    "LFM2-8B-A1B": Truth(
        billions=8.34, full=((6, _kv(8, 64)),), state=(18, 2 * 2048 * 2),
        idle=_experts(22, 28, 2048, 1792), vllm=None,
    ),
    "Kimi-Linear-48B": Truth(
        billions=49.13, full=((6, LATENT),), state=(21, 3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4),
        idle=_experts(26, 248, 2304, 1024), vllm=None,
    ),
    "Falcon-H1": Truth(
        billions=8.515, full=((32, _kv(8, 128)),),
        state=(32, (1024 + 2 * 256) * 3 * 2 + 1024 * 256 * 2), vllm=None,
    ),
    "OLMo-Hybrid-7B": Truth(
        billions=7.431, full=((8, _kv(30, 128)),),
        state=(24, (2 * 30 * 96 + 30 * 192) * 3 * 2 + 30 * 96 * 192 * 2), vllm=None,
    ),
    "GLM-5-next": Truth(  # no rotary part; one index key for 16 tokens
        billions=313.8, full=((11, 512 * 2), (11, 9)),
        state=(34, 3 * 64 * 128 * 3 * 2 + 64 * 128 * 128 * 4),
        idle=_experts(42, 280, 4096, 2048), vllm=None,
    ),
    "nvidia-Gemma-4-31B-NVFP4": Truth(
        billions=31.3, full=((10, _kv(4, 512)),), windows=((50, _kv(16, 256), 1024),),
        scheme="NVFP4", group=16,
        vllm=16_958_095_360,
    ),
    "nvidia-Llama-3.1-70B-FP8": Truth(billions=70.55, full=((80, _kv(8, 128)),), scheme="FP8"),
    "nvidia-Qwen3-235B-NVFP4": Truth(
        billions=235.1, full=((94, _kv(4, 128)),), idle=_experts(94, 120, 4096, 1536),
        scheme="NVFP4", group=16,
    ),
}  # fmt: skip
