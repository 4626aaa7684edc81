"""Ways to damage a target, to see which scores notice: few bits, or one layer that is off."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import nn

from lab.model import Llama

GROUP = 128


def round_weights(model: Llama, bits: int) -> None:
    """Round every linear layer to the nearest of 2^bits levels, symmetric, groups of 128 inputs.

    The scale is absmax / (2^(bits-1) - 0.5), as compressed-tensors has it for symmetric integers.
    """
    for weight in _linear_weights(model.model.layers):
        grouped = weight.view(weight.shape[0], -1, GROUP)
        scale = grouped.abs().amax(-1, keepdim=True).clamp(min=1e-8) / (2 ** (bits - 1) - 0.5)
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        weight.copy_(((grouped / scale).round().clamp(low, high) * scale).view_as(weight))


def scale_layer(model: Llama, layer: int, factor: float) -> None:
    """Multiply every linear weight of one layer by ``factor``."""
    for weight in _linear_weights(model.model.layers[layer]):
        weight.mul_(factor)


def disturb_layer(model: Llama, layer: int, share: float) -> None:
    """Add Gaussian noise of ``share`` times the weights' own standard deviation to one layer."""
    generator = torch.Generator().manual_seed(0)
    for weight in _linear_weights(model.model.layers[layer]):
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        weight.add_(noise * weight.std() * share)


DAMAGES: Mapping[str, Callable[[Llama], None]] = {
    "RTN 8 bit, group 128": lambda model: round_weights(model, 8),
    "RTN 4 bit, group 128": lambda model: round_weights(model, 4),
    "RTN 3 bit, group 128": lambda model: round_weights(model, 3),
    "RTN 2 bit, group 128": lambda model: round_weights(model, 2),
    "layer 2 scaled by 1.05": lambda model: scale_layer(model, 2, 1.05),
    "layer 2 scaled by 1.10": lambda model: scale_layer(model, 2, 1.10),
    "layer 2 noise 10%": lambda model: disturb_layer(model, 2, 0.10),
}


def damaged(model: Llama, name: str) -> Llama:
    """A damaged copy of the model."""
    worse = copy.deepcopy(model)
    with torch.no_grad():
        DAMAGES[name](worse)
    return worse


def _linear_weights(part: nn.Module) -> list[torch.Tensor]:
    return [module.weight for module in part.modules() if isinstance(module, nn.Linear)]
