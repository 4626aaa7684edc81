"""The grid that weights are rounded to, as compressed-tensors defines it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

from whet.core.errors import QuantizationError
from whet.core.spec import RecipeSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Symmetric integers of ``bits`` bits, one scale a row and ``group_size`` columns.

    ``scheme`` is the library's own description and goes into config.json; ``dtype`` is what scales
    are stored in, so that the search already sees them rounded.
    """

    scheme: QuantizationScheme
    bits: int
    group_size: int
    dtype: torch.dtype

    def scales(self, weight: Tensor, shrink: Tensor | float = 1.0) -> Tensor:
        """float32 [O, K/g], representable in ``dtype``, never zero: absmax·shrink / 7.5 at 4 bits.

        ``shrink`` is a number or [O, K/g]: the part of each group's absmax that the grid spans.
        """
        low, high = self._grouped(weight).aminmax(dim=-1)
        scale, _ = calculate_qparams(low * shrink, high * shrink, self.scheme.weights)
        return self.stored_scale(scale).float()

    def stored_scale(self, scale: Tensor) -> Tensor:
        """``scale`` in the stored dtype, at least its smallest normal number: never 0."""
        return scale.to(self.dtype).clamp_(min=torch.finfo(self.dtype).tiny)

    def round(self, weight: Tensor, scale: Tensor) -> Tensor:
        """``weight`` [O, K] moved to its nearest grid points, dequantized, float32."""
        half = 1 << (self.bits - 1)
        wide = scale.unsqueeze(-1)
        levels = (self._grouped(weight) / wide).round_().clamp_(-half, half - 1)
        return levels.mul_(wide).flatten(1)

    def _grouped(self, weight: Tensor) -> Tensor:
        return weight.view(weight.shape[0], -1, self.group_size)


def make_grid(recipe: RecipeSpec, dtype: torch.dtype) -> Grid:
    """The grid of a recipe, from the library's preset of that name."""
    scheme = preset_name_to_scheme(recipe.scheme, ["Linear"])
    weights = scheme.weights
    if weights is None or not weights.symmetric or weights.num_bits is None:
        raise QuantizationError(
            f"the scheme {recipe.scheme} is not a symmetric weight grid; choose W4A16"
        )
    weights = weights.model_copy(update={"group_size": recipe.group_size})
    return Grid(
        scheme=scheme.model_copy(update={"weights": weights}),
        bits=int(weights.num_bits),
        group_size=recipe.group_size,
        dtype=dtype,
    )
