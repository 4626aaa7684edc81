"""A head for SGLang proposes what the draft does, in every step of a chain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.demo.small import norms_in_own_precision, write_small
from tests.demo.test_eagle import IDS, NARROW, TARGET, Eagle3, draft_logits, head, vocabulary

torch = pytest.importorskip("torch")


class SglangEagle3(Eagle3):
    """What SGLang 0.5.17 computes (``models/llama_eagle3.py``)."""

    def step(self, ids: Any, states: Any) -> tuple[Any, Any]:
        """Logits, and the hidden state that the next step of the chain is given."""
        embeds = self.weight("embed_tokens")[ids]
        stream = states @ self.weight("fc").T if states.shape[-1] != embeds.shape[-1] else states
        for number in range(self.config["num_hidden_layers"]):
            layer = f"layers.{number}"
            x = self.norm(stream, f"{layer}.hidden_norm")
            if number == 0:
                x = torch.cat([self.norm(embeds, f"{layer}.input_layernorm"), x], -1)
            stream = stream + self.attention(x, layer)
            x = self.norm(stream, f"{layer}.post_attention_layernorm")
            gate, up, down = (
                self.weight(f"{layer}.mlp.{name}_proj") for name in ("gate", "up", "down")
            )
            stream = stream + (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        normed = self.norm(stream, "norm")
        given = normed if self.config.get("norm_output") else stream
        return normed @ self.weight("lm_head").T, given


def test_every_step_proposes_what_the_draft_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab.sglang_head import sglang_head

    norms_in_own_precision(monkeypatch)
    draft = write_small(tmp_path / "draft", NARROW)
    target = replace(TARGET, vocabulary=vocabulary(draft))
    made = head(draft, tmp_path / "head", target)
    sglang_head(made, tmp_path / "converted")
    expected = draft_logits(draft, IDS, torch.float64)
    states = torch.randn(IDS.shape[1], 3 * target.hidden).double()

    converted = SglangEagle3(tmp_path / "converted")
    width = converted.config["target_hidden_size"] * converted.config["num_aux_hidden_states"]
    assert converted.weight("fc").shape == (converted.config["hidden_size"], width)
    assert converted.config["target_hidden_size"] != converted.config["hidden_size"]
    logits, given = converted.step(IDS[0], states)
    assert (logits - expected).abs().max() < 1e-6
    later, _ = converted.step(IDS[0], given)
    assert (later - expected).abs().max() < 1e-6
