"""Tiny random checkpoints of real architectures, and the 16-bit form of a quantized one.

Every size is a multiple of 128, so that all kernels take them; rows and columns differ in size as
those of trained weights do, or a permuted scale would change little.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from whet.demo import pair_paths

_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_SHAPE: Final[Mapping[str, Any]] = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
_EXPERTS: Final[Mapping[str, Any]] = {
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}
_LATENT: Final[Mapping[str, Any]] = {
    "kv_lora_rank": 512,  # with 64 beside it, the latent that kernels of vLLM take
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "head_dim": 64,
    "num_key_value_heads": 4,
}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"sliding_window": 64, "query_pre_attn_scalar": 64, "tie_word_embeddings": True},
    "gemma3_text": {
        "sliding_window": 64,
        "query_pre_attn_scalar": 64,
        "tie_word_embeddings": True,
    },
    "granite": {"residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "phi3": {"head_dim": None},
    "olmo2": {},
    "smollm3": {},
    "seed_oss": {},
    "mixtral": {},
    "qwen2_moe": {"decoder_sparse_step": 1},
    "qwen3_moe": {},
    "olmoe": {"norm_topk_prob": False},
    # Transformers does not normalize the weights of V2's experts, as no published V2 asks it to.
    "deepseek_v2": {
        **_LATENT,
        "q_lora_rank": None,
        "topk_method": "greedy",
        "norm_topk_prob": False,
    },
    # A factor of 2.5, the default, makes a tiny model chaotic: 16 bits alone move it by 0.3 nats.
    "deepseek_v3": {
        **_LATENT,
        "q_lora_rank": 128,
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 1.0,
    },
    "glm4_moe": {"use_qk_norm": True},
    "dots1": {},
}
TOWERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen2_5_vl": {
        "depth": 2,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_heads": 2,
        "out_hidden_size": 256,
        "fullatt_block_indexes": [1],
    },
    "gemma3": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
"""Vision towers, by the kind of the whole model."""
_IMAGE_TOKENS: Final = {
    "qwen2_5_vl": {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    },
    "gemma3": {
        "image_token_id": "<image_soft_token>",
        "boi_token_id": "<start_of_image>",
        "eoi_token_id": "<end_of_image>",
    },
}
_PROCESSORS: Final = {
    "qwen2_5_vl": ("Qwen2VLImageProcessor", "Qwen2_5_VLProcessor"),
    "gemma3": ("Gemma3ImageProcessor", "Gemma3Processor"),
}
MIXTURES: Final = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe"),
    "dots1",
)


def write_tiny(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a checkpoint of ``kind`` in bf16, as ``save_pretrained`` of transformers does."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    folder.mkdir(parents=True)
    source = pair_paths()[0]
    for name in _TOKENIZER:
        shutil.copyfile(source / name, folder / name)
    auto = AutoModelForImageTextToText if kind in TOWERS else AutoModelForCausalLM
    vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]
    model: Any = auto.from_config(  # type: ignore[no-untyped-call]
        _config(kind, folder, vocabulary), dtype=torch.float32
    )
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_values(name, parameter, dice, tied="gemma" in kind))
    model.to(torch.bfloat16).save_pretrained(folder)
    if kind == "gemma3":
        _rename(folder / "model.safetensors", "vision_tower.", "vision_tower.vision_model.")
    return folder


def _rename(file: Path, old: str, new: str) -> None:
    """Names as in the published checkpoint; transformers 5 writes its own shorter ones."""
    from safetensors.torch import load_file, save_file

    tensors = {name.replace(old, new, 1): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def _config(kind: str, folder: Path, vocabulary: int) -> Any:
    from transformers import AutoConfig

    experts = _EXPERTS if kind in MIXTURES else {}
    values = {
        **_SHAPE,
        **experts,
        **KINDS.get(kind, {}),
        "vocab_size": vocabulary,
    }
    values = {name: value for name, value in values.items() if value is not None}
    if kind not in TOWERS:
        return AutoConfig.for_model(kind, **values)
    tokens = {key: vocabulary + at for at, key in enumerate(_IMAGE_TOKENS[kind])}
    _add_tokens(folder, _IMAGE_TOKENS[kind])
    image, whole = _PROCESSORS[kind]
    processor: dict[str, Any] = {"image_processor_type": image, "processor_class": whole}
    if (size := TOWERS[kind].get("image_size")) is not None:
        processor["size"] = {"height": size, "width": size}
        tokens["mm_tokens_per_image"] = 4
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    # Whole rows of 128: more than the tokens added.
    text = {**values, "vocab_size": vocabulary + 128, "tie_word_embeddings": "gemma" in kind}
    if kind == "qwen2_5_vl":
        sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
        text["rope_parameters"] = sections
    return AutoConfig.for_model(
        kind,
        text_config=text,
        vision_config=dict(TOWERS[kind]),
        tie_word_embeddings="gemma" in kind,
        **tokens,
    )


def _add_tokens(folder: Path, tokens: Mapping[str, str]) -> None:
    from tokenizers import AddedToken, Tokenizer

    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in tokens.values()])
    tokenizer.add_tokens(["\n" * lines for lines in (1, 2, 3, 4)])  # Gemma's are looked up
    tokenizer.save(file)
    # Gemma's processor asks the tokenizer for its tokens by name.
    config = folder / "tokenizer_config.json"
    names = {key.removesuffix("_id"): token for key, token in tokens.items()}
    values = json.loads(config.read_text()) | {"extra_special_tokens": names}
    config.write_text(json.dumps(values))


def _values(name: str, like: Tensor, dice: torch.Generator, *, tied: bool) -> Tensor:
    noise = torch.randn(like.shape, generator=dice)
    if like.dim() == 1:
        is_norm = "norm" in name and name.endswith("weight")
        return like + 0.2 * noise if is_norm else 0.1 * noise
    if "embed" in name:
        return noise * (1.5 / like.shape[-1] ** 0.5 if tied else 1.0)
    # Outputs of about unit size whatever the inputs, and sizes of rows and columns that differ.
    spread = torch.exp(0.5 * torch.randn(like.shape[:-1], generator=dice)).unsqueeze(-1)
    columns = torch.exp(0.4 * torch.randn(like.shape[-1], generator=dice))
    gain = 1.5 if "lm_head" in name else 1.0
    size: float = gain / like.shape[-1] ** 0.5 / 1.5
    return noise * spread * columns * size


def write_dequantized(quantized: Path, folder: Path) -> Path:
    """The weights that an engine multiplies by, as an ordinary bf16 checkpoint.

    Unpacked by the compressed-tensors library, scheme by scheme of its ``config_groups``.
    """
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True)
    config = json.loads((quantized / "config.json").read_text())
    scheme = QuantizationConfig.model_validate(config.pop("quantization_config"))
    (group,) = scheme.config_groups.values()
    state: dict[str, dict[str, Tensor]] = {}
    tensors: dict[str, Tensor] = {}
    for file in sorted(quantized.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            module, _, part = name.rpartition(".")
            if part.startswith("weight_"):
                state.setdefault(module, {})[part] = tensor
            else:
                tensors[name] = tensor
    for module, parts in state.items():
        if f"{module}.weight" in tensors:
            parts["weight"] = tensors.pop(f"{module}.weight")
        tensors[f"{module}.weight"] = _unpacked(parts, group, str(scheme.format))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    for name in _TOKENIZER:
        shutil.copyfile(quantized / name, folder / name)
    return folder


def _unpacked(parts: Mapping[str, Tensor], scheme: Any, form: str) -> Tensor:
    from compressed_tensors.compressors import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(form)
    weight: Tensor = compressor.decompress(dict(parts), scheme)["weight"]
    return weight.to(torch.bfloat16)
