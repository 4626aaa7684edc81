"""An EAGLE-3 head that proposes what the demo draft proposes, at the cost of a real head.

An EAGLE-3 head (arXiv 2503.01840) reads three hidden states of the target and the embedding of the
next token, runs one decoder layer or more, and has a vocabulary head of its own. This one is made,
not trained. D is the draft's hidden size and H the head's.

- **Layer 0 copies.** Its stream begins as the normed hidden state (``norm_before_residual``), whose
  norm weight is zero, so the target's hidden state is multiplied by zero. Attention heads then
  write the token's embedding into the stream. Query and key are one constant vector on the ``m``
  fastest rotary frequencies, so the score of two positions ``Δ`` apart is ``A²·Σ cos(Δ·θᵢ)/√d``,
  largest at Δ = 0 by more than 30: the softmax selects its own position and copies its value.
- **The embedding keeps its norm.** Two channels fill every row up to ``H·(R² − ε')``, so RMSNorm
  with weight R passes the row on unchanged; a third one is constant and feeds query and key.
- **It tolerates 8 bits.** The constant is the largest value of every row, so inputs that an engine
  rounds with one scale per token all have the same scale, and query and key are equal everywhere.
- **The other layers**, the final norm and the vocabulary head are the draft's, widened
  (``lab.widen``), its tied embedding as the head.
- The projection of the hidden states, the MLP of layer 0 and everything unused is random or zero
  as in the widened models: computed, without effect.

A head reads the token *after* a hidden state's position, so it reads a text without its first
token; otherwise its proposals are the draft's, up to rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from lab.sizes import STEP, Sizes
from lab.testbed_model import SourceModel, WrittenModel, copy_tokenizer, new_model, read_source
from lab.widen import Widener, Widening, random_like
from whet._version import __version__
from whet.checkpoint.facts import TESTBED_KEY
from whet.checkpoint.shards import ShardWriter
from whet.core.errors import UsageError
from whet.core.store import write_json

HEAD_ROLE: Final = "eagle3"
LAYERS: Final = 3
HIDDEN_STATES: Final = 3
"""Of the target: one near its first layer, one in the middle, one near its last (EAGLE-3)."""
MLP_SHARE: Final = 4 / 3
"""Intermediate over hidden size: three layers of 4096 then read 0.74 GB per proposed token; a
trained head for Llama 3 8B (one layer, a vocabulary of 32,000) reads 0.75 GB."""
FREQUENCIES: Final = 16
SHARPNESS: Final = 362.0
"""m, and the score of a position with itself, A²·m/√d."""
_CONSTANT: Final = 0.75
"""The constant channel over the row's norm; the filling channels are at most √(1 − 9/16) of it."""
_FILL: Final = 1 - 2**-7
"""The share of the missing norm in the first filling channel; the second has the rest."""

_CARD: Final = """\
# A testbed, not a model

An EAGLE-3 head for a widened demo target of whet: it costs what a head costs ({text}) and proposes
what the demo draft proposes. Made by whet {version}; nothing was trained, and the hidden
states of the target are multiplied by zero. A trained head for a real model has another acceptance.
Source weights: SHA-256 `{sha256}` (over the tensors in the order of their names).
"""


def head_sizes(target: Sizes) -> Sizes:
    """The sizes of a head for ``target``: as wide, three layers, a vocabulary of the same size."""
    wide = -(-int(target.hidden * MLP_SHARE) // STEP) * STEP
    return replace(target, layers=LAYERS, intermediate=wide, tied=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadPlan:
    """The sizes of the head and of its target, and the draft inside the head."""

    sizes: Sizes
    target: Sizes
    draft: Widening

    @classmethod
    def of(cls, narrow: Sizes, epsilon: float, target: Sizes) -> HeadPlan:
        """``UsageError`` where the draft, layer 0 or its three channels do not fit."""
        sizes = head_sizes(target)
        inner = replace(sizes, layers=sizes.layers - 1, tied=True)
        draft = Widening(narrow=narrow, wide=inner, epsilon=epsilon)
        draft.require_possible()
        if narrow.vocabulary != sizes.vocabulary:
            raise UsageError("an EAGLE-3 head needs the pair's own vocabulary; leave --vocab out")
        if sizes.hidden < narrow.hidden + 3:
            raise UsageError(
                f"an EAGLE-3 head needs a hidden size of {narrow.hidden + 3} at least; give the "
                "target a larger one"
            )
        if target.layers <= HIDDEN_STATES:
            raise UsageError(
                f"an EAGLE-3 head reads {HIDDEN_STATES} layers of its target; give the target "
                f"{HIDDEN_STATES + 1} or more"
            )
        plan = cls(sizes=sizes, target=target, draft=draft)
        if plan.copying > sizes.kv_heads:
            raise UsageError(
                f"an EAGLE-3 head needs {plan.copying} KV heads to copy {narrow.hidden} channels; "
                "give the target as many"
            )
        return plan

    @property
    def copying(self) -> int:
        """The number of KV heads that copy the embedding."""
        return -(-self.draft.narrow.hidden // self.sizes.head_dim)

    @property
    def input_layers(self) -> tuple[int, int, int]:
        """The target layers whose inputs the head reads: 2, L/2, L − 3 where L is large enough."""
        layers = self.target.layers
        middle = layers // 2
        return min(2, middle - 1), middle, max(layers - 3, middle + 1)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor, by the names of EAGLE-3 checkpoints."""
        hidden, sizes = self.sizes.hidden, self.sizes
        yield "embed_tokens.weight", (sizes.vocabulary, hidden)
        yield "fc.weight", (hidden, HIDDEN_STATES * self.target.hidden)
        yield "layers.0.hidden_norm.weight", (hidden,)
        for name, shape in replace(self.draft, wide=replace(sizes, tied=False)).shapes():
            if name == "model.embed_tokens.weight":
                continue
            first = name.startswith("model.layers.0.self_attn.") and "o_proj" not in name
            yield name.removeprefix("model."), (shape[0], 2 * hidden) if first else shape


class HeadMaker:
    """Makes the tensors of a head one by one, in the draft's dtype and on its device."""

    def __init__(self, source: Mapping[str, Tensor], plan: HeadPlan) -> None:
        """Take the small draft's tensors, on the device to work on."""
        self._source, self._plan = source, plan
        self._draft = Widener(source, plan.draft, salt="eagle3")
        self._shapes = dict(plan.shapes())
        self._table = source["model.embed_tokens.weight"]

    def make(self, name: str) -> Tensor:
        """The tensor ``name`` of the head."""
        if name == "lm_head.weight":
            return self._draft.make("model.embed_tokens.weight")
        if name == "norm.weight":
            return self._draft.make("model.norm.weight")
        if name == "embed_tokens.weight":
            return self._embedding()
        _, _, rest = name.partition("layers.")
        layer, _, part = rest.partition(".")
        if rest and int(layer) > 0:
            return self._draft.make(f"model.layers.{int(layer) - 1}.{part}")
        return self._first(name, part)

    @property
    def _radius(self) -> float:
        """R, a power of two with ``H·R²/2.5`` above every row's own square."""
        largest = self._table.double().square().sum(-1).max().item() + 1.0
        return float(2.0 ** math.ceil(math.log2(2.5 * largest / self._plan.sizes.hidden) / 2))

    @property
    def _constant(self) -> float:
        """The value of the channel that feeds query and key, rounded to the dtype."""
        value = _CONSTANT * self._radius * math.sqrt(self._plan.sizes.hidden)
        return float(self._table.new_tensor(value))

    def _embedding(self) -> Tensor:
        out = self._table.new_zeros(self._shapes["embed_tokens.weight"])
        own = self._table.shape[1]
        out[:, :own] = self._table
        out[:, own] = self._constant
        whole = self._plan.sizes.hidden * (self._radius**2 - self._plan.draft.wide_epsilon)
        for channel, share in ((own + 1, _FILL), (own + 2, 1.0)):
            left = (whole - out.double().square().sum(-1)).clamp_min(0.0)
            out[:, channel] = (left.sqrt() * share).to(out.dtype)
        return out

    def _first(self, name: str, part: str) -> Tensor:
        """A tensor of layer 0, or the projection of the hidden states."""
        shape = self._shapes[name]
        if part == "hidden_norm.weight":
            return self._table.new_zeros(shape)
        if len(shape) == 1:
            one = self._radius if part == "input_layernorm.weight" else 1.0
            return self._table.new_full(shape, one)
        silent = part.endswith(("o_proj.weight", "down_proj.weight"))
        like = self._source["model.layers.0.mlp.up_proj.weight"]
        out = like.new_zeros(shape) if silent else random_like(like, shape, f"eagle3/{name}")
        if part.startswith("self_attn."):
            self._copy(part.split(".")[1], out)
        return out

    def _copy(self, name: str, out: Tensor) -> None:
        """Set the heads of layer 0 that copy the embedding; changes ``out`` in place."""
        sizes, own = self._plan.sizes, self._table.shape[1]
        width, group = sizes.head_dim, sizes.heads // sizes.kv_heads
        for head in range(self._plan.copying):
            start = head * width * (group if name in ("q_proj", "o_proj") else 1)
            channels = range(head * width, min(own, (head + 1) * width))
            rows = torch.arange(start, start + len(channels))
            if name == "o_proj":
                out[torch.tensor(channels), rows] = 1.0
                continue
            out[start : start + width, : own + 3] = 0.0
            if name == "v_proj":
                out[rows, torch.tensor(channels)] = 1.0
            else:
                used = min(FREQUENCIES, width // 4)
                score = math.sqrt(SHARPNESS * math.sqrt(width) / used)
                out[start : start + used, own] = score / self._constant


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """A head to write: the draft and the plan."""

    draft: SourceModel
    plan: HeadPlan

    @property
    def parameters(self) -> int:
        """All weights."""
        return sum(math.prod(shape) for _, shape in self.plan.shapes())

    @property
    def size_bytes(self) -> int:
        """Size of its tensors on disk."""
        return self.parameters * self.draft.element_bytes


def read_head(draft: Path, target: Sizes) -> Head:
    """The head for ``target`` from the small draft; ``UsageError`` where it does not fit."""
    sizes = head_sizes(target)
    narrow = read_source(draft, replace(sizes, layers=sizes.layers - 1), role=HEAD_ROLE)
    return Head(
        draft=narrow,
        plan=HeadPlan.of(narrow.widening.narrow, narrow.widening.epsilon, target),
    )


def write_head(head: Head, folder: Path, device: torch.device) -> WrittenModel:
    """Write the head to the new ``folder``; raises as ``new_model`` does."""
    start = time.perf_counter()
    draft, plan = head.draft, head.plan
    with new_model(folder, "EAGLE-3 head", device):
        maker = HeadMaker(load_file(draft.folder / "model.safetensors", device=str(device)), plan)
        writer = ShardWriter(folder)
        for name, _ in plan.shapes():
            writer.add(name, maker.make(name).cpu())
        writer.finish()
        copy_tokenizer(draft.folder, folder)
        write_json(folder / "config.json", _config(draft, plan))
        card = _CARD.format(text=plan.sizes.text, version=__version__, sha256=draft.sha256)
        (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    return WrittenModel(
        folder=folder,
        role=HEAD_ROLE,
        sizes=plan.sizes,
        parameters=head.parameters,
        size_bytes=head.size_bytes,
        seconds=time.perf_counter() - start,
    )


def _config(draft: SourceModel, plan: HeadPlan) -> dict[str, Any]:
    return {
        **draft.config,
        "architectures": ["LlamaForCausalLMEagle3"],
        **plan.sizes.config(),
        "draft_vocab_size": plan.sizes.vocabulary,
        "target_hidden_size": plan.target.hidden,
        "eagle_aux_hidden_state_layer_ids": list(plan.input_layers),
        "norm_before_residual": True,
        "rms_norm_eps": plan.draft.wide_epsilon,
        TESTBED_KEY: {
            "of": "the draft of whet's demo pair, as an EAGLE-3 head",
            "weights_sha256": draft.sha256,
        },
    }
