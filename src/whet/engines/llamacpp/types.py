"""The types of tensors that each scheme is stored in."""

from __future__ import annotations

from typing import Final

from whet.engines.base import SchemeKernels

_SMALLER_BLOCKS: Final = frozenset({"q5_0", "q5_1", "q8_0", "iq4_nl"})
"""Stored by llama-quantize in place of a k-quant where rows are not a multiple of 256."""


def _types(*names: str) -> SchemeKernels:
    """Each type has a kernel of its own; one of another scheme's says that the file is not it."""
    return SchemeKernels(native=frozenset(names) | _SMALLER_BLOCKS, fallback=frozenset())


KERNELS: Final = {
    "Q4_K_M": _types("q4_K", "q5_K", "q6_K"),
    "Q5_K_M": _types("q5_K", "q6_K"),
    "Q8_0": _types("q8_0"),
}
