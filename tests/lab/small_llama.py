"""A small Llama that transformers computes in float64 throughout."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.sizes import Sizes

from tests.checkpoint_factory import write_tiny_llama


def write_small(folder: Path, sizes: Sizes) -> Path:
    """A tied Llama of these sizes but for the vocabulary, in float64, with ε = 1e-4."""
    return write_tiny_llama(
        folder,
        dtype="float64",
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate_size=sizes.intermediate,
        rms_norm_eps=1e-4,
        tie_word_embeddings=True,
    )


def norms_in_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers computes its norms in float32 whatever the weights are."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    def forward(self: LlamaRMSNorm, x: torch.Tensor) -> torch.Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + self.variance_epsilon))

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)
