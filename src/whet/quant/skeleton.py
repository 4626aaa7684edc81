"""A model of transformers without weights, and the inputs of its experts.

One decoder layer at a time is given its own weights. Transformers runs all experts of a layer in
one module and takes the function from a registry. Ours goes through them one by one, as its own
plain loop does, and shows every expert's two inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whet.checkpoint.facts import CONVERT
from whet.checkpoint.files import read_json
from whet.core.errors import CheckpointError, QuantizationError

FAULTS: Final = (
    *(ValueError, TypeError, LookupError, AttributeError, ImportError, AssertionError),
    RuntimeError,
)
"""What code of transformers raises for a model that it cannot build or run here."""


class Skeleton:
    """The model of a checkpoint folder on the meta device, and its text decoder.

    Transformers itself brings names and forms of the checkpoint's tensors to the model's: prefixes
    of multimodal models, experts in one tensor.
    """

    def __init__(self, source: Path, dtype: torch.dtype | None) -> None:
        """Build it with ``dtype``, by default the config's; no code of the checkpoint is run."""
        from transformers import CONFIG_MAPPING
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it shows one for every layer
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # of kernels that are missing
        ALL_EXPERTS_FUNCTIONS.register(NAME, _forward)
        kind = read_json(source / "config.json").get("model_type")
        if kind not in CONFIG_MAPPING:
            raise QuantizationError(
                "transformers has no code of its own for them",
                fix="round to nearest instead (--method rtn)",
            )
        try:
            self.model = _build(source, dtype)
            self.dtype: torch.dtype = self.model.dtype
            self.decoder: Any = self.model.get_decoder()
            self.embedding: Any = self.model.get_input_embeddings()
            self._mapping: Any = get_model_conversion_mapping(self.model)
            self._tensors = self.model.state_dict()
            self._paths = {id(each): name for name, each in self.model.named_modules()}
            _ = self.decoder.layers
        except FAULTS as error:
            raise QuantizationError(
                f"transformers builds no decoder of {source} whose layers can be measured "
                f"({words_of(error)})",
                fix="round to nearest instead (--method rtn)",
            ) from error
        kinds = (WeightRenaming, WeightConverter)
        self._rules: Any = [[each for each in self._mapping if isinstance(each, k)] for k in kinds]

    def fill_tables(self, device: torch.device) -> None:
        """Give modules around the layers, such as rotary embeddings, what no checkpoint stores."""
        inside = {id(each) for each in self.decoder.layers.modules()}
        for module in self.decoder.modules():
            tables = dict(module.named_buffers(recurse=False))
            if not tables or id(module) in inside or any(True for _ in module.parameters()):
                continue
            module.to_empty(device=device)
            for name in tables:
                getattr(module, name).fill_(torch.nan)
            self.model._init_weights(module)
            if any(bool(table.isnan().any()) for table in module.buffers()):
                raise QuantizationError(
                    f"transformers leaves {type(module).__name__} without values",
                    fix="round to nearest instead (--method rtn)",
                )

    def name_of(self, tensor: str) -> str:
        """The model's name for a tensor of the checkpoint."""
        from transformers.core_model_loading import rename_source_key

        prefix, rules = self.model.base_model_prefix, self._rules
        return rename_source_key(tensor, rules[0], rules[1], prefix, self._tensors)[0]

    def module(self, linear: str) -> nn.Module:
        """The module that has the weights of the checkpoint's ``linear``, alone or among others."""
        name = self.name_of(f"{linear}.weight")
        module: nn.Module = self.model.get_submodule(name.removesuffix(".weight"))
        return module

    def embedding_of(self, tensors: Iterable[str]) -> str:
        """The tensor of the checkpoint that is the input embedding."""
        name = f"{self._paths[id(self.embedding)]}.weight"
        return next(tensor for tensor in tensors if self.name_of(tensor) == name)

    def load(
        self, tensors: Mapping[str, Tensor], layer: nn.Module, device: torch.device
    ) -> str | None:
        """Give ``layer`` the ``tensors`` by their full names; why it cannot run with them.

        Tensors that the layer does not have are left out. ``CheckpointError`` where one is missing
        or has another shape than the config says; how many experts it says does not count.
        """
        from transformers.core_model_loading import convert_and_load_state_dict_in_model
        from transformers.modeling_utils import LoadStateDictConfig

        config = LoadStateDictConfig(
            dtype=self.dtype, device_map={"": device}, weight_mapping=self._mapping
        )
        info, _ = convert_and_load_state_dict_in_model(self.model, dict(tensors), config)
        path = f"{self._paths[id(layer)]}."
        for name in sorted(info.missing_keys):
            if name.startswith(path) and (layer is not self.decoder or ".layers." not in name):
                known = any(self.name_of(each) in self._tensors for each in tensors)
                why = f"the checkpoint has no {name}, which its architecture needs"
                raise CheckpointError(why, fix="download it again" if known else CONVERT)
        for name, form, shape in sorted(info.mismatched_keys):
            why = f"{name} is stored as {list(form)} and config.json says {list(shape)}"
            if form[-2:] == shape[-2:]:
                return why
            raise CheckpointError(why, fix="restore the config.json of these weights")
        state = layer.state_dict()
        for name, _ in layer.named_buffers():
            if name not in state:  # built without data, and not in the checkpoint
                return f"{path}{name} is not stored"
        return None


def words_of(error: Exception) -> str:
    """The class and the first line of a foreign error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _build(source: Path, dtype: torch.dtype | None) -> Any:
    """The model without weights, with attention that it can compute."""
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    text = config.get_text_config()
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    build = AutoModelForCausalLM.from_config if kind is None else kind._from_config
    options = {
        "experts_implementation": NAME,
        "dtype": dtype or text.dtype or config.dtype or torch.bfloat16,
    }
    caps = getattr(text, "attn_logit_softcapping", None)  # only eager attention does (Gemma 2)
    with torch.device("meta"):
        try:
            return build(config, attn_implementation="eager" if caps else "sdpa", **options)
        except ValueError:
            return build(config, attn_implementation="eager", **options)


NAME: Final = "whet_measured"
METER: Final = "whet_meter"
"""The attribute of a module of experts that holds its meter."""
_SAMPLE: Final = 256
FEWEST: Final = 64
"""An expert with fewer tokens gets a sample of the layer's tokens beside its own."""

Observe = Callable[[int, str, Tensor], None]
"""Called with the expert's number, ``gate_up`` or ``down``, and its inputs: [tokens, K]."""


@dataclass(kw_only=True, slots=True)
class Current:
    """The batch that runs: its number, and the real tokens of it when flattened (None: all)."""

    number: int = 0
    rows: Tensor | None = None

    def real(self, flat: Tensor) -> Tensor:
        """``flat`` [tokens, …] without padding."""
        return flat if self.rows is None else flat[self.rows]


class ExpertsMeter:
    """Shows the inputs of every expert of one layer to ``observe``; padding enters no expert."""

    def __init__(self, module: Any, observe: Observe, current: Current) -> None:
        """``module`` is the layer's experts, built with the implementation ``NAME``."""
        self._module, self._observe, self.current = module, observe, current
        self._counts = [0] * int(module.num_experts)
        self._sample: list[Tensor] = []

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


def _forward(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The output of all experts: [tokens, K]; a module without a meter shows nothing."""
    meter: ExpertsMeter | None = getattr(module, METER, None)
    meter = meter or ExpertsMeter(module, lambda _expert, _name, _inputs: None, Current())
    if hidden_states.is_meta:  # which expert a token goes to is not known
        outputs = [meter.show(expert, hidden_states[:1]) for expert in range(module.num_experts)]
        return torch.zeros_like(hidden_states) + outputs[0]
    tokens = meter.current.real(torch.arange(len(hidden_states), device=hidden_states.device))
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
