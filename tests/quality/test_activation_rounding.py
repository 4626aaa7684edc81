"""What rounding activations otherwise is worth, in a real model: the gate's limit rests on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.data import write_inputs
from whet.demo import pair_paths
from whet.quality.checks import ROUNDING_NATS

TARGET = pair_paths()[0]
DOCUMENTS = 8
TOKENS = 256
Rounding = Callable[[torch.Tensor], torch.Tensor]


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """``x`` with a scale a row, as FP8_DYNAMIC stores and reads it."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def from_16_bits(x: torch.Tensor) -> torch.Tensor:
    """A kernel of its own for it: what it reads was stored in 16 bits."""
    return to_fp8(x.bfloat16().float())


class Served:
    """The demo target with FP8 weights, and predictions under a rounding of activations."""

    def __init__(self, texts: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        write_inputs(texts)
        lines = (texts / "heldout.jsonl").read_text(encoding="utf-8").splitlines()[:DOCUMENTS]
        tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
        chats = [json.loads(line)["messages"] for line in lines]
        said = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
        self.ids = [torch.tensor([tokenizer.encode(text)[:TOKENS]]) for text in said]
        self.model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
        named = self.model.named_modules()
        self.linear = [m for n, m in named if isinstance(m, torch.nn.Linear) and n != "lm_head"]
        self.sixteen = self.predict(None)
        for module in self.linear:
            module.weight.data = to_fp8(module.weight.data)

    def predict(self, rounding: Rounding | None) -> torch.Tensor:
        hooks = [
            m.register_forward_pre_hook(lambda _m, inputs: (rounding(inputs[0]),))
            for m in self.linear
            if rounding is not None
        ]
        with torch.no_grad():
            found = [torch.log_softmax(self.model(x).logits[0].double(), -1) for x in self.ids]
        for hook in hooks:
            hook.remove()
        return torch.cat(found)


def kl(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one.exp() * (one - two)).sum(-1).mean())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("texts"))


def test_right_kernels_are_further_apart_than_the_floor_and_within_the_limit(
    served: Served,
) -> None:
    first, other = served.predict(from_16_bits), served.predict(to_fp8)
    limit = 2 * kl(served.sixteen, first)
    assert ROUNDING_NATS < kl(first, other) < limit
    assert ROUNDING_NATS < kl(first, served.predict(None)) < limit  # activations in 16 bits


def test_a_layer_that_is_half_too_large_is_beyond_it(served: Served) -> None:
    first = served.predict(from_16_bits)
    broken = served.linear[9]
    broken.weight.data = broken.weight.data * 1.5
    try:
        assert kl(first, served.predict(to_fp8)) > 2 * kl(served.sixteen, first)
    finally:
        broken.weight.data = broken.weight.data / 1.5
