"""The inputs of each expert, measured by an experts function of our own inside transformers.

Transformers runs all experts of a layer in one module and takes the function from a registry. Ours
goes through them one by one, as its own plain loop does, and shows every expert's two inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

NAME: Final = "whet_measured"
METER: Final = "whet_meter"
"""The attribute of a module of experts that holds its meter."""
_SAMPLE: Final = 256
FEWEST: Final = 64
"""An expert with fewer tokens gets a sample of the layer's tokens beside its own."""

Observe = Callable[[int, str, Tensor], None]
"""Called with the expert's number, ``gate_up`` or ``down``, and its inputs: [tokens, K]."""


class ExpertsMeter:
    """Shows the inputs of every expert of one layer to ``observe``."""

    def __init__(self, module: Any, observe: Observe) -> None:
        """``module`` is the layer's experts, built with the implementation ``NAME``."""
        self._module, self._observe = module, observe
        self._counts = [0] * int(module.num_experts)
        self._sample: list[Tensor] = []
        self._rows: Tensor | None = None
        self._is_real: Tensor | None = None

    def begin(self, rows: Tensor | None) -> None:
        """Begin a batch whose real tokens are ``rows`` of the flattened one, None for all."""
        self._rows, self._is_real = rows, None

    def show(self, expert: int, rows: Tensor, hidden: Tensor) -> Tensor:
        """Run ``expert`` on ``hidden`` [tokens, K] from the flattened batch's ``rows``."""
        real = slice(None) if self._is_real is None else self._is_real[rows]
        self._counts[expert] += int(hidden[real].shape[0])
        return self._run(expert, hidden, real)

    def keep(self, hidden: Tensor) -> None:
        """Remember some evenly spread tokens of a batch [tokens, K], and which are real."""
        real = hidden
        if self._rows is not None:
            real = hidden[self._rows]
            self._is_real = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
            self._is_real[self._rows] = True
        self._sample.append(real[:: max(1, len(real) // 32)][:32])

    def feed_starved(self) -> tuple[int, ...]:
        """Run the sample through experts that saw too few tokens; returns their numbers."""
        starved = tuple(expert for expert, count in enumerate(self._counts) if count < FEWEST)
        if starved:
            sample = torch.cat(self._sample)
            sample = sample[:: max(1, len(sample) // _SAMPLE)][:_SAMPLE]
            for expert in starved:
                self._run(expert, sample, slice(None))
        return starved

    def _run(self, expert: int, hidden: Tensor, real: slice | Tensor) -> Tensor:
        module = self._module
        self._observe(expert, "gate_up", hidden[real])
        between = _linear(module, "gate_up_proj" if module.has_gate else "up_proj", expert, hidden)
        between = module._apply_gate(between) if module.has_gate else module.act_fn(between)
        self._observe(expert, "down", between[real])
        return _linear(module, "down_proj", expert, between)


def _linear(module: Any, name: str, expert: int, inputs: Tensor) -> Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return functional.linear(inputs, weight.T if module.is_transposed else weight, bias)


def register() -> None:
    """Make ``NAME`` known to transformers."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)


def _forward(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The output of all experts: [tokens, K]; a module without a meter shows nothing."""
    meter: ExpertsMeter | None = getattr(module, METER, None)
    meter = meter or ExpertsMeter(module, lambda _expert, _name, _inputs: None)
    meter.keep(hidden_states)
    total = torch.zeros_like(hidden_states)
    for expert in sorted(set(top_k_index.flatten().tolist())):
        rows, place = torch.where(top_k_index == expert)
        output = meter.show(expert, rows, hidden_states[rows])
        weighted = output * top_k_weights[rows, place, None]
        total.index_add_(0, rows, weighted.to(total.dtype))
    return total
