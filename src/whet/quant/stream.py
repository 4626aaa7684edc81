"""One decoder layer at a time on the device, the calibration set's hidden states on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from whet.core.errors import QuantizationError
from whet.quant.architecture import UNITS, layer_prefix
from whet.quant.gram import InputMeter, InputStats

_BATCH_TOKENS: Final = {"cpu": 4096, "cuda": 16384}


@dataclass(kw_only=True, slots=True)
class _Batch:
    """Samples of about one length, padded on the right: causal attention never sees the padding.

    ``hidden`` is [B, T, D] on the host; ``rows`` picks the real tokens of the flattened batch.
    """

    hidden: Tensor
    rows: Tensor | None


class LayerStream:
    """Runs the calibration set through the decoder, layer after layer."""

    def __init__(self, source: Path, ids: Sequence[Sequence[int]], device: torch.device) -> None:
        """Build the model's skeleton without weights; ``embed`` must follow."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(source, local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation="sdpa"
            )
        self._layers: nn.ModuleList = model.model.layers
        self._rotary: nn.Module = type(model.model.rotary_emb)(config=config).to(device)
        self._window = _sliding_windows(config)
        self._ids = ids
        self._device = device
        # Without bf16 instructions a CPU multiplies bf16 about a hundred times slower than fp32.
        self._dtype = torch.float32 if device.type == "cpu" else (config.dtype or torch.bfloat16)
        self._batches: list[_Batch] = []

    def embed(self, table: Tensor) -> None:
        """Look up every sample in ``table`` [V, D]."""
        budget = _BATCH_TOKENS.get(self._device.type, 4096)
        for group in batch_by_length(self._ids, budget):
            length = len(group[-1])
            padded = torch.tensor([[*ids, *[0] * (length - len(ids))] for ids in group])
            real = torch.tensor(
                [[True] * len(ids) + [False] * (length - len(ids)) for ids in group]
            )
            rows = None if bool(real.all()) else real.flatten().nonzero().squeeze(1)
            self._batches.append(_Batch(hidden=table[padded].to(self._dtype), rows=rows))

    @torch.no_grad()
    def measure(self, index: int, tensors: Mapping[str, Tensor]) -> dict[str, InputStats]:
        """Run layer ``index`` with these weights, and what each unit's input looked like.

        The hidden states move on to the next layer.
        """
        layer = self._load(index, tensors)
        meters: dict[str, InputMeter] = {}
        hooks = []
        rows: list[Tensor | None] = [None]
        for unit in UNITS:
            linear = cast(nn.Linear, layer.get_submodule(unit.linears[0]))
            meters[unit.name] = InputMeter(linear.in_features, self._device)
            hook = partial(_observe, meters[unit.name], rows)
            hooks.append(linear.register_forward_pre_hook(hook))
        try:
            self._advance(index, layer, before=lambda batch: rows.__setitem__(0, batch.rows))
        finally:
            for handle in hooks:
                handle.remove()
            layer.to("meta")
        prefix = layer_prefix(index)
        return {name: meter.finish(f"{prefix}{name}") for name, meter in meters.items()}

    def _load(self, index: int, tensors: Mapping[str, Tensor]) -> nn.Module:
        layer = self._layers[index]
        wanted = layer.state_dict().keys()
        if missing := sorted(wanted - tensors.keys()):
            raise QuantizationError(
                f"layer {index} of the checkpoint has no {missing[0]}, which its architecture "
                "needs; download the checkpoint again"
            )
        weights = {name: tensors[name].to(self._device, self._dtype) for name in wanted}
        layer.load_state_dict(weights, assign=True)
        return layer.eval()

    def _advance(self, index: int, layer: nn.Module, before: Callable[[_Batch], None]) -> None:
        for batch in self._batches:
            before(batch)
            hidden = batch.hidden.to(self._device, non_blocking=True)
            length = hidden.shape[1]
            positions = torch.arange(length, device=self._device).unsqueeze(0)
            out = layer(
                hidden,
                attention_mask=_window_mask(self._window[index], length, self._device),
                position_ids=positions,
                position_embeddings=self._rotary(hidden, positions),
            )
            batch.hidden = (out[0] if isinstance(out, tuple) else out).to("cpu")


def batch_by_length(ids: Sequence[Sequence[int]], budget: int) -> list[list[Sequence[int]]]:
    """Samples sorted by length, cut into batches of at most ``budget`` tokens, padding included."""
    batches: list[list[Sequence[int]]] = []
    for sample in sorted(ids, key=len):
        if batches and (len(batches[-1]) + 1) * len(sample) <= budget:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def _observe(
    meter: InputMeter, rows: list[Tensor | None], _module: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    flat = inputs[0].flatten(0, -2)
    meter.add(flat if rows[0] is None else flat[rows[0].to(flat.device)])


def _sliding_windows(config: Any) -> list[int | None]:
    """The attention window of each layer, None where it attends to everything before it."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _window_mask(window: int | None, length: int, device: torch.device) -> Tensor | None:
    """[1, 1, T, T], True where attended; None is plain causal, which attention does itself."""
    if window is None or length <= window:
        return None
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal.triu(1 - window)[None, None]
