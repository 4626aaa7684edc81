"""A tiny random Llama pair with a tokenizer of its own, and its W4A16 twin, for real servers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

GROUP = 128


def write_pair(folder: Path) -> tuple[Path, Path]:
    """(target, draft): two layers and one, of 128 channels, with one tokenizer."""
    made = []
    for name, layers in (("target", 2), ("draft", 1)):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=512,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
            bos_token_id=0,
            eos_token_id=1,
        )
        path = folder / name
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
        _tokenizer().save_pretrained(path)
        made.append(path)
    return made[0], made[1]


def _tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    core.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")


def write_w4a16(source: Path, folder: Path) -> Path:
    """``source`` rounded to symmetric 4 bits in groups of 128, as compressed-tensors stores it."""
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        rows, columns = tensor.shape
        grouped = tensor.float().reshape(rows, columns // GROUP, GROUP)
        scale = grouped.abs().amax(-1).clamp(min=1e-6) / 7
        values = (grouped / scale[..., None]).round().clamp(-8, 7).reshape(rows, columns)
        stem = name.removesuffix(".weight")
        tensors[f"{stem}.weight_packed"] = pack_to_int32(values.to(torch.int8), 4)
        tensors[f"{stem}.weight_scale"] = scale.to(torch.bfloat16)
        tensors[f"{stem}.weight_shape"] = torch.tensor([rows, columns])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights | {"symmetric": True}}
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder
