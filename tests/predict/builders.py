"""Records to plan with, without files."""

from __future__ import annotations

from typing import Any

from whet.core.provenance import Device
from whet.core.records.engine import Speculation, Variant
from whet.core.records.model import ModelFacts, StoredWeights, TokenizerIdentity
from whet.core.units import GIB

LLAMA_2_7B = {"layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128, "hidden_size": 4096}


def model(**shape: Any) -> ModelFacts:
    """Llama-2-7B, stored in 16 bits, unless ``shape`` says otherwise."""
    values: dict[str, Any] = {
        "path": "/models/target",
        "architecture": "LlamaForCausalLM",
        "parameters": 6_738_415_616,
        "weight_bytes": 13_476_831_232,
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
    return ModelFacts(**(values | LLAMA_2_7B | shape))


def gpu(memory_gib: float = 24, *, name: str = "NVIDIA L4", count: int = 1) -> Device:
    """A GPU."""
    return Device(
        kind="cuda", name=name, memory_bytes=int(memory_gib * GIB), count=count, driver="580"
    )


def cpu(memory_gib: float = 24) -> Device:
    """A machine without one."""
    return Device(kind="cpu", name="EPYC", memory_bytes=int(memory_gib * GIB), count=1, driver=None)


def variant(
    *,
    speculate: bool = False,
    env: dict[str, str] | None = None,
    weights: str = "16bit",
    **args: Any,
) -> Variant:
    """A variant with these engine flags."""
    draft = Speculation(method="draft_model", num_tokens=4, draft_path="/models/draft")
    return Variant(
        name="v",
        weights=weights,
        scheme="16bit",
        model_path="/models/target",
        speculation=draft if speculate else None,
        prefix_cache=False,
        engine_args=tuple(args.items()),
        env=tuple((env or {}).items()),
    )
