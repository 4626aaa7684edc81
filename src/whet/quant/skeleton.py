"""A model of transformers without weights, and the inputs of its experts.

One decoder layer at a time is given its own weights. Transformers runs all experts of a layer in
one module and takes the function from a registry. Ours goes through them one by one, as its own
plain loop does, and shows every expert's two inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whet.core.errors import QuantizationError

_FAULTS: Final = (ValueError, TypeError, KeyError, AttributeError, ImportError)


class Skeleton:
    """The model of a checkpoint folder on the meta device, and its text decoder.

    Names and forms of the checkpoint's tensors are brought to the model's by transformers itself:
    prefixes of multimodal models, experts in one tensor.
    """

    def __init__(self, source: Path, dtype: torch.dtype | None) -> None:
        """Build it with ``dtype``, by default the config's; no code of the checkpoint is run."""
        import transformers
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it shows one for every layer
        register()
        try:
            config = AutoConfig.from_pretrained(
                source, local_files_only=True, trust_remote_code=False
            )
            text = config.get_text_config()
            self.dtype: torch.dtype = dtype or text.dtype or config.dtype or torch.bfloat16
            names = config.architectures or [""]
            kind = getattr(transformers, names[0], None)
            # Only eager attention computes soft-capped scores (Gemma 2).
            capped = getattr(text, "attn_logit_softcapping", None)
            build = AutoModelForCausalLM.from_config if kind is None else kind._from_config
            with torch.device("meta"):
                self._model: Any = build(
                    config,
                    attn_implementation="eager" if capped else "sdpa",
                    experts_implementation=NAME,
                    dtype=self.dtype,
                )
            self.decoder: Any = self._model.get_decoder()
            self._mapping = get_model_conversion_mapping(self._model)
            _ = self.decoder.layers, self.decoder.rotary_emb, self.decoder.embed_tokens
        except _FAULTS as error:
            raise QuantizationError(
                f"transformers builds no decoder of {source} whose layers can be measured "
                f"({type(error).__name__}: {error})",
                fix="round to nearest instead (--method rtn)",
            ) from error

    @property
    def whole(self) -> Any:
        """The model with its head."""
        return self._model

    def load(
        self, tensors: Mapping[str, Tensor], layer: nn.Module, device: torch.device
    ) -> str | None:
        """Give ``layer`` the ``tensors`` by their full names; the first of its own that is missing.

        Tensors that the layer does not have are left out.
        """
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        config = LoadStateDictConfig(
            dtype=self.dtype,
            device_map={"": device},
            weight_mapping=self._mapping,  # type: ignore[arg-type]
        )
        convert_and_load_state_dict_in_model(self._model, dict(tensors), config)
        return next((name for name, each in layer.state_dict().items() if each.is_meta), None)


NAME: Final = "whet_measured"
METER: Final = "whet_meter"
"""The attribute of a module of experts that holds its meter."""
_SAMPLE: Final = 256
FEWEST: Final = 64
"""An expert with fewer tokens gets a sample of the layer's tokens beside its own."""

Observe = Callable[[int, str, Tensor], None]
"""Called with the expert's number, ``gate_up`` or ``down``, and its inputs: [tokens, K]."""


class ExpertsMeter:
    """Shows the inputs of every expert of one layer to ``observe``.

    ``rows`` are the real tokens of the flattened batch, None for all; padding enters no expert.
    """

    def __init__(self, module: Any, observe: Observe) -> None:
        """``module`` is the layer's experts, built with the implementation ``NAME``."""
        self._module, self._observe = module, observe
        self._counts = [0] * int(module.num_experts)
        self._sample: list[Tensor] = []
        self.rows: Tensor | None = None

    def show(self, expert: int, hidden: Tensor) -> Tensor:
        """Run ``expert`` on ``hidden`` [tokens, K]."""
        self._counts[expert] += len(hidden)
        return self._run(expert, hidden)

    def keep(self, hidden: Tensor) -> None:
        """Remember some evenly spread tokens of a batch [tokens, K]."""
        self._sample.append(hidden[:: max(1, len(hidden) // 32)][:32])

    def feed_starved(self) -> tuple[int, ...]:
        """Run the sample through experts that saw too few tokens; returns their numbers."""
        starved = tuple(expert for expert, count in enumerate(self._counts) if count < FEWEST)
        if starved:
            sample = torch.cat(self._sample)
            sample = sample[:: max(1, len(sample) // _SAMPLE)][:_SAMPLE]
            for expert in starved:
                self._run(expert, sample)
        return starved

    def _run(self, expert: int, hidden: Tensor) -> Tensor:
        module = self._module
        self._observe(expert, "gate_up", hidden)
        between = _linear(module, "gate_up_proj" if module.has_gate else "up_proj", expert, hidden)
        between = module._apply_gate(between) if module.has_gate else module.act_fn(between)
        self._observe(expert, "down", between)
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
    tokens = torch.arange(len(hidden_states), device=hidden_states.device)
    tokens = tokens if meter.rows is None else meter.rows
    meter.keep(hidden_states[tokens])
    chosen = top_k_index[tokens].flatten()
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=module.num_experts).tolist()
    rows = torch.split(tokens[order // top_k_index.shape[1]], counts)
    weights = torch.split(top_k_weights[tokens].flatten()[order], counts)
    total = torch.zeros_like(hidden_states)
    for expert, count in enumerate(counts):
        if count:
            output = meter.show(expert, hidden_states[rows[expert]])
            weighted = output * weights[expert].unsqueeze(1)
            total.index_add_(0, rows[expert], weighted.to(total.dtype))
    return total
