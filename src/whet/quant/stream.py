"""One decoder layer at a time on the device, driven by the model's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map_only

from whet.core.errors import QuantizationError
from whet.quant.architecture import CACHED, Architecture
from whet.quant.gram import InputMeter, InputStats
from whet.quant.skeleton import FAULTS, METER, Current, ExpertsMeter, Skeleton, words_of

_BATCH_TOKENS: Final = {"cpu": 4096, "cuda": 16384}
_MIXTURE: Final = 4  # as many tokens a batch, as each expert sees few of them
_COMPARED_SAMPLES: Final = 8
_TINY: Final = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStats:
    """One layer's inputs by unit, and the largest |key| and |value|, each channel's: [C].

    Keys are as a cache stores them, after the rotary embedding. ``output_change`` runs the layer
    with some weights replaced: the mean over tokens of ‖Δy‖² / ‖y‖², y being the layer's output.
    It can be called until the next layer is measured. ``starved`` are the experts that saw too few
    tokens and got a sample of all.
    """

    units: Mapping[str, InputStats]
    keys: Tensor
    values: Tensor
    output_change: Callable[[Mapping[str, Tensor]], float]
    starved: tuple[int, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Batch:
    """Samples of about one length, padded on the right: causal attention never sees the padding.

    ``hidden`` is [B, T, D]; ``rows`` picks the real tokens of the flattened batch.
    """

    hidden: Tensor
    rows: Tensor | None

    def real(self) -> Tensor:
        """The hidden states of the real tokens: float32 [N, D]."""
        flat = self.hidden.flatten(0, 1)
        return (flat if self.rows is None else flat[self.rows.to(flat.device)]).float()

    def head(self, samples: int) -> _Batch:
        """A copy of the first ``samples``."""
        hidden = self.hidden[:samples].clone()
        end = hidden.shape[0] * hidden.shape[1]
        return _Batch(hidden=hidden, rows=None if self.rows is None else self.rows[self.rows < end])


class LayerStream:
    """Runs the calibration set through the decoder, layer after layer."""

    def __init__(
        self,
        source: Path,
        ids: Sequence[Sequence[int]],
        architecture: Architecture,
        device: torch.device,
    ) -> None:
        """Build the model's skeleton without weights; ``embed`` must follow."""
        # Without bf16 instructions a CPU multiplies bf16 about a hundred times slower than fp32.
        self.skeleton = Skeleton(source, torch.float32 if device.type == "cpu" else None)
        self._decoder = self.skeleton.decoder
        self._layers = self._decoder.layers
        self._architecture = architecture
        self._ids = ids
        self._device = device
        # Of a trial only the layer is without data: masks depend on values.
        self._around = torch.device("cpu") if device.type == "meta" else device
        self.skeleton.fill_tables(self._around)
        self._batches: list[_Batch] = []
        self._current = Current()

    @torch.no_grad()
    def embed(self, table: Tensor) -> None:
        """Look up every sample in ``table`` [V, D]."""
        embedding, device = self.skeleton.embedding, self._around
        table = table.to(device, self.skeleton.dtype)
        embedding.weight = nn.Parameter(table, requires_grad=False)
        if hasattr(embedding, "scalar_embed_scale"):  # Gemma; its buffer was built without data
            embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale, device=device)
        budget = _BATCH_TOKENS[device.type]
        if any(unit.expert is not None for units in self._architecture.units for unit in units):
            budget *= _MIXTURE
        for group in batch_by_length(self._ids, budget):
            padded = pad_sequence([torch.tensor(ids) for ids in group], batch_first=True)
            lengths = torch.tensor([len(ids) for ids in group])
            real = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
            rows = None if bool(real.all()) else real.flatten().nonzero().squeeze(1).to(device)
            self._batches.append(_Batch(hidden=embedding(padded.to(device)), rows=rows))
        embedding.to("meta")

    @torch.no_grad()
    def measure(self, index: int, tensors: Mapping[str, Tensor]) -> LayerStats:
        """Run layer ``index`` with these weights and measure the inputs of its units and its cache.

        Its output becomes the input of the next layer.
        """
        prefix = self._architecture.prefixes[index]
        layer = self._load(prefix, index, tensors)
        middle = self._batches[len(self._batches) // 2]  # of medium length
        inputs = middle.head(_COMPARED_SAMPLES)
        with self._metered(layer, index) as (meters, experts):
            cache = self._advance(self._batches, index, layer)
            starved = () if experts is None else experts.feed_starved()
        layer.to("meta")

        @torch.no_grad()
        def output_change(changed: Mapping[str, Tensor]) -> float:
            batch = replace(inputs)
            self.advance(index, {**tensors, **changed}, [batch])
            output = middle.head(_COMPARED_SAMPLES).real()
            change = (batch.real() - output).square_().sum(dim=1)
            return float((change / output.square_().sum(dim=1).clamp_(min=_TINY)).mean())

        return LayerStats(
            units={name: meter.finish(f"{prefix}{name}") for name, meter in meters.items()},
            keys=cache.keys,
            values=cache.values,
            output_change=output_change,
            starved=starved,
        )

    @torch.no_grad()
    def try_head(self, tensors: Mapping[str, Tensor]) -> None:
        """Run what follows the layers without data; ``QuantizationError`` where it cannot."""
        self.load_head(tensors, tensors.__getitem__)
        size = self.skeleton.embedding.embedding_dim
        self.log_probabilities(torch.empty(1, size, dtype=self.skeleton.dtype, device="meta"))

    @torch.no_grad()
    def try_layers(self, tensors: Mapping[str, Tensor]) -> None:
        """Run a layer of each kind without data; ``QuantizationError`` for one that cannot.

        ``CheckpointError`` where ``tensors`` are not those of the model's class.
        """
        embedding = self.skeleton.embedding
        self.load_head(tensors, tensors.__getitem__)
        table = torch.zeros(1, embedding.embedding_dim, dtype=self.skeleton.dtype)
        self.embed(table.expand(embedding.num_embeddings, -1))
        tried: list[object] = []
        layers: list[tuple[str, int, dict[str, Tensor]]] = []
        types = getattr(self._decoder.config, "layer_types", None)
        for index, prefix in enumerate(self._architecture.prefixes):
            names = [name for name in tensors if name.startswith(prefix)]
            own = {name.removeprefix(prefix): tensors[name] for name in names}
            form = {name: tensor.shape for name, tensor in own.items()}
            kind = (form, types[index] if types and index < len(types) else None, index == 0)
            if kind in tried:
                continue
            tried.append(kind)
            layers.append((prefix, index, own))
            whole = {name: tensors[name] for name in names}
            self.skeleton.load(whole, self._layers[index], self._device)  # damage before all else
        for prefix, index, own in layers:
            layer = self._load(prefix, index, own)
            with self._metered(layer, index) as (meters, _):
                self._advance([replace(self._batches[0])], index, layer)
            for unit, meter in meters.items():
                if not meter.tokens:
                    raise self._refusal(f"nothing enters {prefix}{unit}")

    @torch.no_grad()
    def advance(
        self, index: int, tensors: Mapping[str, Tensor], batches: Sequence[_Batch] | None = None
    ) -> None:
        """Run layer ``index`` with these weights, by default on all batches; measure nothing."""
        layer = self._load(self._architecture.prefixes[index], index, tensors)
        self._advance(batches or self._batches, index, layer)
        layer.to("meta")

    def states(self) -> Iterator[Tensor]:
        """Yield the hidden states [T, D] of each sample, the shortest first, without padding."""
        lengths = iter(sorted(map(len, self._ids)))
        for batch in self._batches:
            for hidden in batch.hidden:
                yield hidden[: next(lengths)]

    def load_head(self, names: Iterable[str], read: Callable[[str], Tensor]) -> None:
        """Load what follows the layers; a head that is not among ``names`` is the embedding."""
        stem = self._architecture.prefixes[0].partition("layers.")[0]
        outside = [name for name in names if "layers." not in name]
        names = [name for name in outside if "lm_head." in name or name.startswith(stem)]
        tensors = {name: read(name) for name in names}
        embedding, head = self.skeleton.embedding, self.skeleton.model.get_output_embeddings()
        with self._translated("the head"):
            self.skeleton.load(tensors, self._decoder, self._device)
            if head.weight.is_meta:
                head.weight = embedding.weight

    @torch.no_grad()
    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """The float32 log-probabilities [T, V] of ``hidden`` [T, D], as it leaves the last layer.

        The model's own forward scales and caps its logits.
        """
        output = hidden.unsqueeze(0)
        inputs = torch.zeros_like(output, device=self._around)
        before = [_SkippedLayer() for _ in self._layers[1:]]
        self._decoder.layers = nn.ModuleList([*before, _SkippedLayer(output)])
        try:
            with self._translated("the head"):
                logits: Tensor = self.skeleton.model(inputs_embeds=inputs, use_cache=False).logits
        finally:
            self._decoder.layers = self._layers
        return logits.squeeze(0).float().log_softmax(dim=-1)

    @contextmanager
    def _metered(
        self, layer: nn.Module, index: int
    ) -> Iterator[tuple[dict[str, InputMeter], ExpertsMeter | None]]:
        """Meters on the input of each unit, and one on the experts, inside the block."""
        prefix, current = self._architecture.prefixes[index], self._current
        meters: dict[str, InputMeter] = {}
        hooks = []
        of_expert: dict[tuple[int, str], InputMeter] = {}
        for unit in self._architecture.units[index]:
            meter = meters[unit.name] = InputMeter(self._device, unit.name)
            if unit.expert is not None:
                of_expert[unit.expert, unit.name.rpartition(".")[2]] = meter
                continue
            with self._translated("a layer"):
                linear = self.skeleton.module(prefix + unit.linears[0])
            hooks.append(linear.register_forward_pre_hook(partial(_observe, meter, current)))
        module = next((each for each in layer.modules() if hasattr(each, "_apply_gate")), None)
        experts = None
        if module is not None:

            def observe(expert: int, role: str, inputs: Tensor) -> None:
                of_expert[expert, role].add(inputs, batch=current.number)

            experts = ExpertsMeter(module, observe, current)
            setattr(module, METER, experts)
        try:
            yield meters, experts
        finally:
            for handle in hooks:
                handle.remove()
            if module is not None:
                delattr(module, METER)

    @contextmanager
    def _translated(self, part: str) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except FAULTS as error:
            raise self._refusal(words_of(error), part) from error

    def _load(self, prefix: str, index: int, tensors: Mapping[str, Tensor]) -> nn.Module:
        layer: nn.Module = self._layers[index]
        problem = self.skeleton.load(
            {prefix + name: tensor for name, tensor in tensors.items()}, layer, self._device
        )
        if problem is not None:
            raise self._refusal(problem)
        return layer.eval()

    def _refusal(self, why: str, part: str = "a layer") -> QuantizationError:
        return QuantizationError(
            f"transformers cannot run {part} of {self._architecture.model_type!r} alone ({why})",
            fix="round to nearest instead (--method rtn), or in place of auto name the method",
        )

    def _advance(self, batches: Sequence[_Batch], index: int, layer: nn.Module) -> _CacheMeter:
        """Replace the hidden states of ``batches`` by the layer's output; return its cache."""
        linears = [name for unit in self._architecture.units[index] for name in unit.linears]
        stores = any(name.endswith(CACHED) for name in linears)  # others keep a state, not a cache
        cache = _CacheMeter(self._current)
        measured = _MeasuredLayer(layer, cache if stores else None, first=index == 0)
        self._decoder.layers = nn.ModuleList([*(_SkippedLayer() for _ in range(index)), measured])
        try:
            for number, batch in enumerate(batches):
                self._current.number, self._current.rows = number, batch.rows
                measured.hidden = batch.hidden
                try:
                    with self._translated("a layer"):
                        self._decoder(inputs_embeds=batch.hidden, use_cache=False)
                except _LayerOutput as output:
                    batch.hidden = output.hidden
                else:
                    raise AssertionError("the model did not run its last layer")
        finally:
            self._decoder.layers = self._layers
        return cache


class _LayerOutput(Exception):
    """Ends the model's forward with the output of the measured layer."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _SkippedLayer(nn.Module):
    """Replaces a layer that is not to run, by ``output`` where it is given."""

    def __init__(self, output: Tensor | None = None) -> None:
        super().__init__()
        self.output = output

    def forward(self, hidden: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        return hidden if self.output is None else self.output


class _MeasuredLayer(nn.Module):
    """Runs one layer on its stored hidden states, with the model's own masks and rotary embeddings.

    The first layer takes its input from the model, because some scale the embeddings.
    """

    def __init__(self, layer: nn.Module, cache: _CacheMeter | None, *, first: bool) -> None:
        super().__init__()
        self.layer = layer
        self.cache = cache
        self.first = first
        self.hidden = torch.empty(0)

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = (hidden if self.first else self.hidden, args, kwargs)
        place = next(self.layer.parameters()).device
        states, args, kwargs = tree_map_only(Tensor, lambda each: each.to(place), given)
        if self.cache is not None or "past_key_values" in kwargs:
            kwargs["past_key_values"] = self.cache
        out = self.layer(states, *args, **kwargs)
        raise _LayerOutput(out[0] if isinstance(out, tuple) else out)


class _CacheMeter:
    """Takes the place of a KV cache and records the largest |key| and |value| of each channel.

    States of recurrences and convolutions, which hybrid layers have too, begin anew.
    """

    def __init__(self, current: Current) -> None:
        self._current = current
        self.keys = self.values = torch.zeros(())

    def update(
        self, keys: Tensor, values: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by attention with [B, heads, T, head_dim]; returns them unchanged."""
        self.keys = torch.maximum(self.keys.to(keys.device), self._peak(keys))
        self.values = torch.maximum(self.values.to(values.device), self._peak(values))
        return keys, values

    def has_previous_state(self, *_args: Any) -> bool:
        """Return that a sequence begins."""
        return False

    def update_conv_state(self, state: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
        """Return the state unchanged."""
        return state

    update_recurrent_state = update_conv_state

    def _peak(self, states: Tensor) -> Tensor:
        flat = states.transpose(1, 2).flatten(0, 1).flatten(1)
        return self._current.real(flat).abs().amax(dim=0).float()


def _observe(
    meter: InputMeter, current: Current, _module: nn.Module, inputs: tuple[Tensor, ...]
) -> None:
    meter.add(current.real(inputs[0].flatten(0, -2)), batch=current.number)


def batch_by_length(ids: Sequence[Sequence[int]], budget: int) -> list[list[Sequence[int]]]:
    """Samples sorted by length, cut into batches of at most ``budget`` tokens, padding included."""
    batches: list[list[Sequence[int]]] = []
    for sample in sorted(ids, key=len):
        if batches and (len(batches[-1]) + 1) * len(sample) <= budget:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches
