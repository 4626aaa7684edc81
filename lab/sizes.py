"""The sizes of a testbed: named shapes, or five numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean

STEP: Final = 128
"""Hidden and intermediate sizes are multiples of this, the usual group of 4-bit weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The sizes of a Llama without biases; ``tied`` says whether its head is its embedding."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    head_dim: int = 128
    vocabulary: int = 4096
    tied: bool = True

    def parameters(self) -> int:
        """Weights, by ``V·D·(1 or 2) + D + L·(2·D + 2·D·d·(H + G) + 3·D·M)``."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden
        return ends + self.layers * (2 * self.hidden + attention + mlp)

    def config(self) -> dict[str, Any]:
        """Return the keys of config.json that say these sizes."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
        }

    @property
    def text(self) -> str:
        """``hidden 4096, 32 layers, 32/8 heads of 128, intermediate 14336``."""
        return (
            f"hidden {self.hidden}, {self.layers} layers, {self.heads}/{self.kv_heads} heads of "
            f"{self.head_dim}, intermediate {self.intermediate}"
        )


def _sizes(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> Sizes:
    return Sizes(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, intermediate=intermediate
    )


_7B: Final = _sizes(4096, 32, 32, 8, 14336)

SHAPES: Final[Mapping[str, Sizes]] = {
    "0.03b": _sizes(512, 8, 4, 1, 2048),
    "0.3b": _sizes(1024, 20, 8, 2, 4096),
    "1b": _sizes(2048, 16, 16, 4, 8192),
    "3b": _sizes(3072, 28, 24, 8, 8192),
    "7b": _7B,
    "8b": _7B,
    "13b": _sizes(5120, 40, 40, 40, 13824),
}
"""1b and 3b are Llama 3.2's (1b with its heads of 64 paired into heads of 128), 7b and 8b Llama
3 8B's, 13b Llama 2 13B's. 0.3b is a target that a CPU can serve, and 0.03b a draft for it."""


def find_sizes(text: str) -> Sizes:
    """The sizes of a named shape (``7b``) or of five numbers in the order of ``Sizes``.

    ``1024,12,8,2,4096`` is hidden, layers, heads, KV heads, intermediate. ``UsageError`` for
    anything else.
    """
    if text.lower() in SHAPES:
        return SHAPES[text.lower()]
    parts = text.split(",")
    if len(parts) == 5 and all(part.strip().isdecimal() for part in parts):
        return _sizes(*(int(part) for part in parts))
    raise UsageError(
        f"unknown shape {text!r}{did_you_mean(text.lower(), SHAPES)}; choose one of "
        f"{', '.join(SHAPES)}, or give hidden, layers, heads, KV heads and intermediate as five "
        "numbers"
    )


def require_groups(sizes: Sizes, what: str) -> None:
    """``UsageError`` where the sizes of ``what`` are not whole groups of 4-bit weights."""
    for name, value in (("hidden", sizes.hidden), ("intermediate", sizes.intermediate)):
        if value % STEP:
            raise UsageError(
                f"the {name} size of the {what} must be a multiple of {STEP}, the group of 4-bit "
                f"weights (got {value}); use {-(-value // STEP) * STEP}"
            )
