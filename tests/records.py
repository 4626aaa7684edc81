"""Plain records for tests; each takes what a test cares about and has a value for the rest."""

from __future__ import annotations

from typing import Any

from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.load import WorkloadFacts
from whet.core.records.model import ModelFacts, StoredWeights, TokenizerIdentity
from whet.core.records.quality import QualityRecord


def model(**change: Any) -> ModelFacts:
    """Llama-2-7B, stored in 16 bits."""
    values: dict[str, Any] = {
        "path": "/models/target",
        "architecture": "LlamaForCausalLM",
        "parameters": 6_738_415_616,
        "weight_bytes": 13_476_831_232,
        "hidden_size": 4096,
        "layers": 32,
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "max_position": 4096,
        "tied_embeddings": False,
        "kv_bytes_per_token": 524_288,
        "stored": StoredWeights(
            scheme="16bit",
            dtype="bfloat16",
            group_size=None,
            bits_per_weight=16.0,
            quantized_modules=0,
            unquantized_modules=224,
        ),
        "tokenizer": TokenizerIdentity(
            vocab_size=32000,
            sha256="t",
            chat_template_sha256=None,
            bos_token_id=1,
            eos_token_ids=(2,),
        ),
        "weights_sha256": "w",
        "linear_parameters": 6_476_005_376,
        "linear_inputs": (4096, 11008),
    }
    return ModelFacts(**values | change)


def variant(**change: Any) -> Variant:
    """The 16-bit model with nothing else on."""
    values: dict[str, Any] = {
        "name": "v",
        "weights": "16bit",
        "scheme": "16bit",
        "model_path": "/m",
        "speculation": None,
        "prefix_cache": False,
    }
    return Variant(**values | change)


def resolved(of: Variant, **change: Any) -> ResolvedEngine:
    """A variant as vLLM on a CPU was told of it."""
    values: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "device": "cpu",
        "served_model_name": "m",
        "argv": (),
        "env": (),
        "serve_line": "",
        "ready_timeout_s": 1.0,
    }
    return ResolvedEngine(variant=of, **values | change)


def quality(**change: Any) -> QualityRecord:
    """A baseline of which nothing was measured."""
    values: dict[str, Any] = {
        "variant": "fp16",
        "baseline": "fp16",
        "perplexity": None,
        "perplexity_ratio": None,
        "nll": (),
        "tasks": (),
        "answers": (),
        "examples": (),
        "verdicts": (),
        "reason": None,
        "seconds": 0.0,
    }
    return QualityRecord(**values | change)


def workload(**change: Any) -> WorkloadFacts:
    """Traffic of which most shares its prefixes."""
    values: dict[str, Any] = {
        "sha256": "w",
        "requests": 20,
        "shared_prefix_share": 0.7,
        "long_system_share": 0.5,
        "shared_prefixes": 4,
        "input_tokens_mean": 500.0,
        "output_tokens_mean": 100.0,
        "input_output_ratio": 5.0,
        "block_size": 128,
        "expected_hit_rate": 0.6,
        "seed": 0,
    }
    return WorkloadFacts(**values | change)
