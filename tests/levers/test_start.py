"""A start-up log, as vLLM 0.32 wrote it on a CPU, and the verdicts that it supports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.builders import resolved
from whet.core.records.evidence import Declared, EngineFacts
from whet.engines import get_profile
from whet.engines.vllm.log import read_log
from whet.levers import judge_start

_W = "(Worker pid=7) INFO 11-21 02:08:14 [base_loader.py:125] "
_T = "(Worker pid=8) INFO 11-21 02:08:14 [base_loader.py:125] "


def structure(layers: str, *, quant: str = "", who: str = _W) -> str:
    """The model as the inspection prints it; ``quant`` stands in the qkv and down projections."""
    lines = [
        "vLLM model structure:",
        "LlamaForCausalLM()(",
        "  (model): LlamaModel()(",
        "    (embed_tokens): VocabParallelEmbedding(num_embeddings=512, tp_size=1)",
        "    (layers): ModuleList()(",
        f"      {layers}LlamaDecoderLayer()(",
        "        (self_attn): LlamaAttention()(",
        f"          (qkv_proj): QKVParallelLinear({quant}in_features=128, output_features=256)",
        "          (rotary_emb): RotaryEmbedding(head_size=64)(",
        "            (apply_rotary_emb): ApplyRotaryEmb(is_neox_style=True)",
        "          )",
        "          (attn): Attention(quant=CompressedTensorsKVCacheMethod, head_size=64, "
        "backend=CPUAttentionBackendImpl)",
        "        )",
        "        (mlp): LlamaMLP()(",
        f"          (down_proj): RowParallelLinear({quant}in_features=256, output_features=128)",
        "          (act_fn): SiluAndMul()",
        "        )",
        "      )",
        "    )",
        "    (norm): RMSNorm(hidden_size=128, eps=1e-06)",
        "  )",
        "  (lm_head): ParallelLMHead(num_embeddings=512, embedding_dim=128)",
        ")",
    ]
    return "\n".join(who + line for line in lines) + "\n"


ENGINE = (
    "(EngineCore pid=5) INFO 11-21 02:07:47 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: model='/m', seed=0, enable_prefix_caching=True, enable_chunked_prefill=True\n"
)
KV = (
    "\x1b[32m(EngineCore pid=5) INFO 11-21 02:08:17 [kv_cache_utils.py:2327] CPU KV cache size: "
    "1,398,016 tokens, Maximum concurrency for 512 tokens per request: 2730.50x\x1b[0m\n"
)
KERNEL = (
    "(Worker pid=7) INFO 11-21 02:08:15 [compressed_tensors_wNa16.py:138] Using "
    "CPUWNA16LinearKernel for CompressedTensorsWNA16\n"
)
EAGER = (
    "(APIServer pid=1) WARNING 11-21 02:07:21 [vllm.py:1703] Enforce eager set, disabling "
    "torch.compile and CUDAGraphs\n"
)
QUANT = "quant=CompressedTensorsWNA16, "


def facts(log: str) -> EngineFacts:
    return read_log(log)


def test_facts_of_a_whole_log() -> None:
    found = facts(ENGINE + EAGER + EAGER + KERNEL + structure("(0-31): 32 x ", quant=QUANT) + KV)
    assert found == EngineFacts(
        version="0.32.0",
        weight_kernels=("CPUWNA16LinearKernel for CompressedTensorsWNA16",),
        quantized_layers=64,
        unquantized_layers=0,
        attention_backend="CPUAttentionBackendImpl",
        kv_cache_tokens=1398016,
        prefix_cache_enabled=True,
        async_scheduling=None,
        notices=("Enforce eager set, disabling torch.compile and CUDAGraphs",),
        attention_class="CPUAttentionBackendImpl",
        eager=True,
        frontend="python",
    )


def test_layers_are_the_targets_not_the_drafts_or_another_ranks() -> None:
    target = structure("(0): ", quant=QUANT).splitlines(keepends=True)
    other = structure("(0): ", quant=QUANT, who=_T).splitlines(keepends=True)
    woven = "".join(a + b for a, b in zip(target, other, strict=True))
    found = facts(woven + structure("(0): "))
    assert (found.quantized_layers, found.unquantized_layers) == (2, 0)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("Async scheduling not supported with draft_model-based speculative decoding and", False),
        ("Async scheduling is disabled because the V1 model runner does not support it", False),
        ("Async scheduling is not compatible with x=True and will be disabled.", False),
        ("Asynchronous scheduling is enabled.", True),
        ("nothing of the kind", None),
    ],
)
def test_async_scheduling_in_the_words_of_each_version(line: str, value: bool | None) -> None:
    assert facts(
        f"(EngineCore pid=5) INFO 11-21 02:07:47 [vllm.py:1] {line}\n"
    ).async_scheduling is (value)


def test_a_cuda_log_names_its_backend_and_both_kernel_wordings() -> None:
    found = facts(
        "INFO 11-21 02:07:47 [cuda.py:507] Using FLASH_ATTN attention backend out of potential "
        "backends: ['FLASH_ATTN'].\n"
        "INFO 11-21 02:07:47 [x.py:1] Using MacheteLinearKernel for CompressedTensorsWNA16\n"
        "INFO 11-21 02:07:47 [x.py:1] Selected CutlassFP8ScaledMMLinearKernel for "
        "CompressedTensorsW8A8Fp8\n"
    )
    assert found.attention_backend == "FLASH_ATTN"
    assert found.weight_kernels == (
        "MacheteLinearKernel for CompressedTensorsWNA16",
        "CutlassFP8ScaledMMLinearKernel for CompressedTensorsW8A8Fp8",
    )


def test_an_unknown_engines_log_is_not_guessed_at() -> None:
    assert get_profile("openai").read_log(KERNEL + KV).weight_kernels == ()


def outcome(log: str, scheme: str) -> str:
    return judge_start(resolved(scheme=scheme, prefix_cache=True), facts(log))[0].outcome


GOOD = KERNEL + structure("(0-1): 2 x ", quant=QUANT)


@pytest.mark.parametrize(
    ("log", "word"),
    [
        (GOOD, "proved"),
        (KERNEL + structure("(0-1): 2 x "), "contradicted"),
        (structure("(0-1): 2 x ", quant=QUANT), "unproved"),
        (KERNEL, "unproved"),
        ("", "unproved"),
        (GOOD.replace("CPUWNA16", "TritonW4A16"), "contradicted"),
        (GOOD.replace("CPUWNA16", "Novel"), "unproved"),
        (
            GOOD + "Failed to find a kernel that can implement the WNA16 linear layer.",
            "contradicted",
        ),
    ],
    ids=["both", "no-op", "no kernel line", "no layers", "silent", "slow", "unknown", "fallback"],
)
def test_four_bits_need_a_known_kernel_and_quantized_layers(log: str, word: str) -> None:
    assert outcome(log, "W4A16") == word


@pytest.mark.parametrize(
    ("log", "word"),
    [
        (structure("(0-1): 2 x "), "proved"),
        (structure("(0-1): 2 x ", quant=QUANT), "contradicted"),
        (KERNEL + structure("(0-1): 2 x "), "contradicted"),
        ("", "unproved"),
    ],
    ids=["plain", "quantized layer", "kernel", "silent"],
)
def test_sixteen_bits_mean_no_quantized_layer(log: str, word: str) -> None:
    assert outcome(log, "16bit") == word


def test_a_log_that_contradicts_the_cache_setting_says_so() -> None:
    off = resolved(prefix_cache=False)
    verdicts = judge_start(off, facts(ENGINE + GOOD))
    assert [(v.claim.kind, v.outcome) for v in verdicts] == [
        ("weights", "proved"),
        ("prefix_cache", "contradicted"),
    ]
    agreeing = judge_start(
        replace(off, variant=replace(off.variant, prefix_cache=True)), facts(ENGINE)
    )
    assert [v.claim.kind for v in agreeing] == ["weights"]


@pytest.mark.parametrize(
    ("device", "pool", "outcome"),
    [
        ("cuda", "9000000000", "proved"),  # a search's start, next to other servers
        ("cuda", "None", "contradicted"),
        ("cpu", "9000000000", "contradicted"),
    ],
)
def test_a_share_of_the_gpu_is_not_judged_where_the_search_sized_the_pool(
    device: str, pool: str, outcome: str
) -> None:
    item = resolved(scheme="16bit")
    args = (("gpu_memory_utilization", 0.9), ("max_num_seqs", 8))
    item = replace(item, device=device, variant=replace(item.variant, engine_args=args))
    cache = (("gpu_memory_utilization", "0.1"), ("kv_cache_memory_bytes", pool))
    declared = Declared(
        version=None, config=(("scheduler_config.max_num_seqs", "8"),), cache=cache, models=()
    )
    verdicts = judge_start(item, read_log(""), declared)
    (settings,) = (each for each in verdicts if each.claim.kind == "settings")
    assert settings.outcome == outcome
