"""Widen a small Llama to the sizes of a large one that computes the same.

The residual stream of the large model holds the small one's channels first and zeros after them.
D and D' are the small and the large hidden size; what follows holds exactly, up to rounding:

- **Norms.** RMSNorm divides by ``sqrt(sum(x²)/D + ε)``. Over D' channels, D of them non-zero,
  ``sum(x²)/D' + ε·D/D'`` is the same sum times D/D', so ``ε' = ε·D/D'`` and ``w' = w·sqrt(D/D')``
  give the small model's output (arXiv 1910.07467, equation 4).
- **Heads.** A query head of the small model reads a copy of its own KV head. Where the large model
  has fewer query heads per KV head, the KV head is stored as often as needed. Added heads are
  random, and the columns of ``o_proj`` that read them are zero.
- **MLP.** Added channels are random, and the columns of ``down_proj`` that read them are zero.
- **Layers.** Added layers come last. Their ``o_proj`` and ``down_proj`` are zero, the rest random.
- **Vocabulary.** Added rows must have a lower logit than all others for any text. A linear head
  has no bias, so one padding channel of the stream holds a constant k: the embedding writes it, ε'
  is smaller by ``k²/D'``, which removes it from the divisor of every norm, and only the final norm
  has a weight for it, which the added rows alone read. Their logit is ``-PUSH·READ/rms`` of the
  small model's final stream. The head is then stored apart from the embedding.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from lab.sizes import Sizes
from whet.core.errors import UsageError

Axis = Literal["hidden", "heads", "kv", "mlp"]
PUSH: Final = 64.0
READ: Final = 2048.0
"""The constant channel after the final norm is PUSH/rms, and added rows of the head read it by
-READ. On demo prompts the rms of the final stream is 2 to 370, so an added logit is -65,000 to
-350, and its probability is zero."""

_MATRICES: Final[Mapping[str, tuple[Axis, Axis, bool]]] = {
    "self_attn.q_proj": ("heads", "hidden", True),
    "self_attn.k_proj": ("kv", "hidden", True),
    "self_attn.v_proj": ("kv", "hidden", True),
    "self_attn.o_proj": ("hidden", "heads", False),
    "mlp.gate_proj": ("mlp", "hidden", True),
    "mlp.up_proj": ("mlp", "hidden", True),
    "mlp.down_proj": ("hidden", "mlp", False),
}
"""Axes of the rows and columns, and whether the rest may be random."""

_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"
_FINAL_NORM: Final = "model.norm.weight"


@dataclass(frozen=True, kw_only=True, slots=True)
class Widening:
    """From the sizes of one model to those of another; ``epsilon`` is the small model's."""

    narrow: Sizes
    wide: Sizes
    epsilon: float

    def require_possible(self) -> None:
        """``UsageError`` where the small model does not fit into the large one."""
        narrow, wide = self.narrow, self.wide
        for name in ("hidden", "layers", "heads", "kv_heads", "intermediate", "vocabulary"):
            least, given = getattr(narrow, name), getattr(wide, name)
            if given < least:
                word = name.replace("_", " ")
                raise UsageError(f"{word} {given} is below the demo model's own {least}; give more")
        if wide.heads % wide.kv_heads:
            raise UsageError(
                f"{wide.heads} heads cannot share {wide.kv_heads} KV heads evenly; give a number "
                "of heads that is a multiple of the KV heads"
            )
        if wide.hidden % wide.heads:
            raise UsageError(
                f"the hidden size must be a multiple of the number of heads, which transformers "
                f"checks (got {wide.hidden} and {wide.heads}); change one of the two"
            )
        if wide.head_dim != narrow.head_dim:
            raise UsageError(
                f"heads of {wide.head_dim} cannot hold the demo model's heads of "
                f"{narrow.head_dim}; keep the head dimension"
            )
        copies = self.kv_copies
        if narrow.kv_heads * copies > wide.kv_heads:
            raise UsageError(
                f"{wide.heads}/{wide.kv_heads} heads cannot hold the demo model's "
                f"{narrow.heads}/{narrow.kv_heads}: it needs {narrow.kv_heads * copies} KV heads "
                f"of {wide.heads // wide.kv_heads} query heads each; give more heads"
            )
        if self.padded_vocabulary and wide.hidden == narrow.hidden:
            raise UsageError(
                f"a larger vocabulary needs a spare channel; give a hidden size above {wide.hidden}"
            )

    @property
    def padded_vocabulary(self) -> bool:
        """Whether rows are added to the vocabulary."""
        return self.wide.vocabulary > self.narrow.vocabulary

    @property
    def kv_copies(self) -> int:
        """The number of copies of each KV head."""
        narrow, wide = self.narrow, self.wide
        return math.ceil((narrow.heads // narrow.kv_heads) / (wide.heads // wide.kv_heads))

    @property
    def norm_scale(self) -> float:
        """The factor of norm weights: ``sqrt(D/D')``."""
        return math.sqrt(self.narrow.hidden / self.wide.hidden)

    @property
    def constant(self) -> float:
        """k of the constant channel, a power of two with ``k² ≤ ε·D/2``; 0 where none is needed."""
        if not self.padded_vocabulary:
            return 0.0
        return 2.0 ** math.floor(math.log2(self.epsilon * self.narrow.hidden / 2) / 2)

    @property
    def wide_epsilon(self) -> float:
        """``(ε·D − k²)/D'``."""
        return (self.epsilon * self.narrow.hidden - self.constant**2) / self.wide.hidden

    def width(self, axis: Axis) -> int:
        """The large model's size along an axis."""
        wide = self.wide
        return {
            "hidden": wide.hidden,
            "heads": wide.heads * wide.head_dim,
            "kv": wide.kv_heads * wide.head_dim,
            "mlp": wide.intermediate,
        }[axis]

    def positions(self, axis: Axis) -> tuple[list[int], list[int]]:
        """Indices along an axis of the large model, and the small model's indices stored there."""
        if axis in ("hidden", "mlp"):
            size = self.narrow.hidden if axis == "hidden" else self.narrow.intermediate
            return list(range(size)), list(range(size))
        pairs = self._query_positions() if axis == "heads" else self._kv_positions()
        size = self.narrow.head_dim
        wide = [place * size + channel for place, _ in pairs for channel in range(size)]
        narrow = [head * size + channel for _, head in pairs for channel in range(size)]
        return wide, narrow

    def _query_positions(self) -> list[tuple[int, int]]:
        narrow, wide = self.narrow, self.wide
        few, many = narrow.heads // narrow.kv_heads, wide.heads // wide.kv_heads
        pairs = []
        for head in range(narrow.heads):
            group, member = divmod(head, few)
            copy, slot = divmod(member, many)
            pairs.append(((group * self.kv_copies + copy) * many + slot, head))
        return pairs

    def _kv_positions(self) -> list[tuple[int, int]]:
        copies = self.kv_copies
        return [(place, place // copies) for place in range(self.narrow.kv_heads * copies)]

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of the large model in the order of its use."""
        wide = self.wide
        yield _EMBEDDING, (wide.vocabulary, wide.hidden)
        for layer in range(wide.layers):
            for norm in _NORMS:
                yield f"model.layers.{layer}.{norm}.weight", (wide.hidden,)
            for name, (rows, columns, _) in _MATRICES.items():
                shape = (self.width(rows), self.width(columns))
                yield f"model.layers.{layer}.{name}.weight", shape
        yield _FINAL_NORM, (wide.hidden,)
        if not wide.tied:
            yield _HEAD, (wide.vocabulary, wide.hidden)

    def shares(self) -> tuple[float, float]:
        """The shares of the large model's weights that are the small one's, and that are zero.

        The rest is random. Copies of KV heads count as the small model's.
        """
        narrow, wide = self.narrow, self.wide
        table = narrow.vocabulary * narrow.hidden
        copied = 2 * narrow.kv_heads * narrow.head_dim * narrow.hidden * (self.kv_copies - 1)
        own = narrow.parameters() + narrow.layers * copied + (0 if wide.tied else table)

        inner = wide.heads * wide.head_dim + wide.intermediate
        used = narrow.heads * narrow.head_dim + narrow.intermediate
        zeros = wide.layers * wide.hidden * inner - narrow.layers * narrow.hidden * used
        zeros += wide.vocabulary * wide.hidden - table
        return own / wide.parameters(), zeros / wide.parameters()


class Widener:
    """Makes the tensors of the large model one by one on a device, in the small one's dtype."""

    def __init__(self, source: Mapping[str, Tensor], widening: Widening, *, salt: str) -> None:
        """Take the small model's tensors, on the device to work on.

        ``salt`` and the name of a tensor seed its random weights, so they are the same on every
        device of one kind.
        """
        self._source = source
        self._widening = widening
        self._salt = salt

    def make(self, name: str) -> Tensor:
        """The tensor ``name`` of the large model."""
        if name == _EMBEDDING:
            return self._embedding()
        if name == _HEAD:
            return self._head()
        if name == _FINAL_NORM:
            return self._norm(self._source[name], final=True)
        prefix, layer, part = _split(name)
        own = self._widening.narrow.layers
        weight = self._source[f"{prefix}.{layer % own}.{part}"]
        if weight.ndim == 1:
            return self._norm(weight, final=False)
        return self._matrix(name, weight, _MATRICES[part.removesuffix(".weight")], layer < own)

    def _matrix(
        self, name: str, weight: Tensor, kind: tuple[Axis, Axis, bool], real: bool
    ) -> Tensor:
        rows, columns, filled = kind
        shape = (self._widening.width(rows), self._widening.width(columns))
        seed = f"{self._salt}/{name}"
        out = random_like(weight, shape, seed) if filled else weight.new_zeros(shape)
        if real:
            row, from_row = self._index(rows, weight.device)
            column, from_column = self._index(columns, weight.device)
            out[row[:, None], column] = weight[from_row[:, None], from_column]
        return out

    def _index(self, axis: Axis, device: torch.device) -> tuple[Tensor, Tensor]:
        wide, narrow = self._widening.positions(axis)
        return torch.tensor(wide, device=device), torch.tensor(narrow, device=device)

    def _norm(self, weight: Tensor, *, final: bool) -> Tensor:
        """Padding has the mean weight: it multiplies zeros, and quantizers divide by norms."""
        widening = self._widening
        scaled = weight.double() * widening.norm_scale
        out = scaled.mean().expand(widening.wide.hidden).clone()
        out[: len(scaled)] = scaled
        if widening.padded_vocabulary:
            push = widening.norm_scale * PUSH / widening.constant
            out[len(scaled)] = push if final else 0.0
        return out.to(weight.dtype)

    def _embedding(self) -> Tensor:
        weight, wide = self._source[_EMBEDDING], self._widening.wide
        out = weight.new_zeros(wide.vocabulary, wide.hidden)
        out[: weight.shape[0], : weight.shape[1]] = weight
        if self._widening.padded_vocabulary:
            out[:, weight.shape[1]] = self._widening.constant
        return out

    def _head(self) -> Tensor:
        weight, wide = self._source[_EMBEDDING], self._widening.wide
        rows, columns = weight.shape
        out = random_like(weight, (wide.vocabulary, wide.hidden), f"{self._salt}/{_HEAD}")
        out[:rows, :columns] = weight
        out[rows:, :columns] = 0.0
        out[:rows, columns] = 0.0
        out[rows:, columns] = -READ
        return out


def random_like(like: Tensor, shape: tuple[int, ...], seed: str) -> Tensor:
    """Normal values of the scale of ``like``, in its dtype and on its device."""
    generator = torch.Generator(like.device)
    generator.manual_seed(zlib.crc32(seed.encode()))
    drawn = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
    return drawn.mul_(like.double().std())


def source_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The tensors that a small model of these sizes has to consist of."""
    return dict(Widening(narrow=sizes, wide=sizes, epsilon=1.0).shapes())


def _split(name: str) -> tuple[str, int, str]:
    head, _, rest = name.partition(".layers.")
    layer, _, part = rest.partition(".")
    return f"{head}.layers", int(layer), part
