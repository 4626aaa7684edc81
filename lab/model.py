"""A compact Llama with the parameter names of Hugging Face, for training and scoring the demo pair.

Shapes in comments: B sequences, T positions, H query heads, G key/value heads, D head dimension.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from lab.tokenizer import BOS_ID, END_ID, PAD_ID, VOCABULARY


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The sizes of one model. The head dimension is that of 7B models, so it can be widened."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int = VOCABULARY
    head_dim: int = 128
    max_positions: int = 4096
    rope_theta: float = 10000.0
    epsilon: float = 1e-5

    def config(self) -> dict[str, object]:
        """``config.json`` of the checkpoint."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.epsilon,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": BOS_ID,
            "eos_token_id": END_ID,
            "pad_token_id": PAD_ID,
            "torch_dtype": "bfloat16",
        }

    @classmethod
    def of(cls, folder: Path) -> Shape:
        """The shape that a checkpoint's ``config.json`` states."""
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(
            hidden=stated["hidden_size"],
            layers=stated["num_hidden_layers"],
            heads=stated["num_attention_heads"],
            kv_heads=stated["num_key_value_heads"],
            mlp=stated["intermediate_size"],
            vocabulary=stated["vocab_size"],
            head_dim=stated["head_dim"],
        )


TARGET = Shape(hidden=384, layers=6, heads=3, kv_heads=1, mlp=1024)
DRAFT = Shape(hidden=128, layers=2, heads=1, kv_heads=1, mlp=384)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions (arXiv 2104.09864, halves rotated)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """x [B, T, hidden], turn [2, 1, 1, T, D/2] angles as (cos, sin)."""
        batch, length, _ = x.shape
        query = rotate(self._split(self.q_proj(x)), turn)
        key = rotate(self._split(self.k_proj(x)), turn)
        value = self._split(self.v_proj(x))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out

    def _split(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.shape.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, hidden]."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """x [B, T, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), turn)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.epsilon)


class Llama(nn.Module):
    """The whole model; the output head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.arange(shape.max_positions)[:, None] / shape.rope_theta**half
        turns = torch.stack((angles.cos(), angles.sin()))
        self.register_buffer("turns", turns, persistent=False)
        self.apply(self._start)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, T, vocabulary] of ids [B, T]."""
        turn = self.get_buffer("turns")[:, None, None, : ids.shape[1]]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, turn)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary positions on x [B, heads, T, D]; turn is (cos, sin) [2, 1, 1, T, D/2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = turn[0], turn[1]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.type_as(x)


def save_model(model: Llama, folder: Path) -> None:
    """Write config, generation config and bfloat16 weights as Hugging Face has them."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ends = {"bos_token_id": BOS_ID, "eos_token_id": END_ID, "pad_token_id": PAD_ID}
    for name, value in (("config", model.shape.config()), ("generation_config", ends)):
        text = json.dumps(value, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def load_model(folder: Path) -> Llama:
    """The model of a checkpoint folder, in float32 on the CPU."""
    model = Llama(Shape.of(folder))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()
