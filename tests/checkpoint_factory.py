"""Tiny checkpoints on the fly: real random weights, a real byte-level BPE tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

TEXT = (
    "the order was shipped on monday and the parcel arrived on friday",
    "please answer with the order number and the price of the item",
    "the customer asks for a refund of the broken lamp",
) * 4
BOS, EOS = "<|start|>", "<|end|>"
CHAT_TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}{% endfor %}"


def write_tiny_llama(path: Path, *, seed: int = 0, dtype: str = "float16", **config: Any) -> Path:
    """Write a Llama that ``transformers`` can load; ``config`` overrides keys of its config.json.

    Hidden 128, 2 layers, 2/1 heads of 64, MLP 256, untied, 300 tokens; float16 or float32.
    """
    path.mkdir(parents=True, exist_ok=True)
    vocab_size = write_tokenizer(path)
    merged = tiny_config(vocab_size) | {"dtype": dtype} | config
    rng = np.random.default_rng(seed)
    tensors = {
        name: (rng.standard_normal(shape) * 0.05 + (len(shape) == 1)).astype(dtype)
        for name, shape in llama_shapes(merged).items()
    }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    write_json(path / "config.json", merged)
    return path


def tiny_config(vocab_size: int) -> dict[str, Any]:
    """The config.json of a tiny Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "intermediate_size": 256,
        "vocab_size": vocab_size,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a Llama of this config, as transformers saves them."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def write_tokenizer(path: Path) -> int:
    """Train and write a byte-level BPE tokenizer of about 300 tokens; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    write_json(path / "tokenizer_config.json", config)
    write_json(path / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [1]})
    return int(tokenizer.get_vocab_size())


def write_hollow(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, tuple[str, tuple[int, ...]]] | None = None,
) -> Path:
    """A checkpoint with true headers and no data: the file is sparse, so 70B cost nothing.

    ``tensors`` maps names to (safetensors dtype, shape); by default a bf16 Llama of ``config``.
    """
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "tokenizer.json").exists():
        write_tokenizer(path)
    if tensors is None:
        tensors = {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    write_json(path / "config.json", config)
    write_hollow_file(path / "model.safetensors", tensors)
    return path


def in_fp8(folder: Path) -> Path:
    """A model whose linear layers are stored in FP8 with blocks of 128."""
    folder.mkdir(parents=True)
    vocab = write_tokenizer(folder)
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = tiny_config(vocab) | {"quantization_config": block, "max_position_embeddings": 4096}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (vocab, 128)),
        "model.norm.weight": ("BF16", (128,)),
        "lm_head.weight": ("BF16", (vocab, 128)),
    }
    linears = {
        "self_attn.q_proj": (128, 128),
        "self_attn.k_proj": (64, 128),
        "self_attn.v_proj": (64, 128),
        "self_attn.o_proj": (128, 128),
        "mlp.gate_proj": (256, 128),
        "mlp.up_proj": (256, 128),
        "mlp.down_proj": (128, 256),
    }
    for layer in range(2):
        for name, (rows, columns) in linears.items():
            prefix = f"model.layers.{layer}.{name}"
            tensors[f"{prefix}.weight"] = ("F8_E4M3", (rows, columns))
            blocks = (-(-rows // 128), -(-columns // 128))
            tensors[f"{prefix}.weight_scale_inv"] = ("F32", blocks)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = ("BF16", (128,))
    return write_hollow(folder, config, tensors)


def write_hollow_file(file: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """One sparse safetensors file."""
    width = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1}
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=np.int64)) * width[dtype]
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with file.open("wb") as handle:
        handle.write(len(raw).to_bytes(8, "little") + raw)
        handle.truncate(8 + len(raw) + offset)


def write_json(path: Path, data: object) -> None:
    """Plain JSON."""
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")


def write_adapter(folder: Path, *modules: str, **config: Any) -> Path:
    """A LoRA adapter as PEFT writes it: tensors of ``modules``, rank 8 unless ``r`` says more."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "r": 8, **config})
    names = [f"base_model.model.layers.0.{each}.lora_A.weight" for each in modules or ("q_proj",)]
    tensors = dict.fromkeys(names, ("F16", (8, 128)))
    write_hollow_file(folder / "adapter_model.safetensors", tensors)
    return folder
