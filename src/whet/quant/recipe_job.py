"""One recipe in a pass: from the layers of the source to a finished folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from compressed_tensors.quantization import QuantizationConfig
from torch import Tensor

from whet.checkpoint import read_facts
from whet.checkpoint.shards import ShardWriter
from whet.core.records.model import ModelFacts
from whet.core.records.quant import QuantizedCheckpoint, UnitError
from whet.core.spec import SIXTEEN_BIT
from whet.core.spec.recipe import Method as MethodName
from whet.core.staging import require_space, staged
from whet.quant import awq, gptq, smoothquant
from whet.quant.architecture import Architecture
from whet.quant.calibration import Calibration
from whet.quant.checkpoint_record import (
    CacheKey,
    copy_beside,
    describe,
    write_config,
    write_record,
)
from whet.quant.fold import LinearScales
from whet.quant.layer import LayerQuantizer, Method, SourceLayer
from whet.quant.mixed import UnitCost, choose_units, mark_wider, rewrite
from whet.quant.packing import quantization_config
from whet.quant.phase_timer import PhaseTimer
from whet.quant.rounding import make_grid, with_static_order
from whet.quant.skeleton import FEWEST
from whet.quant.suitability import FOLDING, inputs_needed, require_suitable
from whet.quant.tensor_reader import TensorReader
from whet.quant.unit import round_to_nearest
from whet.quant.verify import Expected, verify_weights

METHODS: Final[Mapping[MethodName, Method]] = {
    "awq": Method(fit=awq.fit),
    "gptq": Method(fit=gptq.fit, nearest=False),
    "smoothquant": Method(fit=smoothquant.fit),
    "rtn": Method(fit=round_to_nearest),
}
_NARROW: Final = "narrow"
_NO_GAIN: Final = 0.99
_NAMED: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceModel:
    """The source, which all recipes share. ``dtype`` is that of its linears."""

    reader: TensorReader
    facts: ModelFacts
    architecture: Architecture
    dtype: torch.dtype
    device: torch.device


class RecipeJob:
    """Writes one checkpoint into a hidden folder until ``finish`` or ``close``."""

    def __init__(self, out: Path, key: CacheKey, model: SourceModel) -> None:
        """Nothing is checked or written before ``open``."""
        self.recipe = key.recipe
        self._out, self._key, self._model = out, key, model
        self._method = METHODS[self.recipe.method]
        self._grid = make_grid(self.recipe.scheme, self.recipe.group_size, model.dtype)
        self._wide = None if self.recipe.mixed is None else model.dtype
        self._timer = PhaseTimer(model.device)
        self._stack = ExitStack()
        self._scales: dict[str, LinearScales] = {}
        self._errors: list[UnitError] = []
        self._linears: dict[str, list[str]] = {}
        self._starved: list[tuple[str, int]] = []

    @property
    def needs_inputs(self) -> bool:
        """Whether calibration text has to run through the layers."""
        return bool(inputs_needed(self.recipe))

    def open(self) -> None:
        """Check the recipe against the model and make the hidden folder.

        ``QuantizationError`` where the two do not fit, ``StorageError`` where the disk is too
        small.
        """
        recipe, model = self.recipe, self._model
        shapes = {name: header.shape for name, header in model.reader.headers.items()}
        require_suitable(model.architecture, shapes, recipe)
        needed_bytes = model.facts.weight_bytes * self._grid.bits // 8
        require_space(self._out, needed_bytes, "the checkpoint")
        self._stage = self._stack.enter_context(staged(self._out))
        self._folder = shards = self._stage.folder
        if self._wide is not None:
            shards = self._folder / _NARROW
            shards.mkdir()
        self._writer = ShardWriter(shards)
        self._quantizer = LayerQuantizer(
            method=self._method,
            shares_scales=recipe.method in FOLDING,
            grid=self._grid,
            wide=self._wide,
            head_dim=model.facts.head_dim,
            norm_offset=model.architecture.norm_offset,
            kv_cache=recipe.kv_cache is not None,
            device=model.device,
        )

    def add_tensor(self, name: str, tensor: Tensor) -> None:
        """Write a tensor outside the decoder's layers as it is."""
        self._writer.add(name, tensor)

    def add_layer(self, layer: SourceLayer) -> None:
        """Quantize one layer and write it."""
        with self._timer.phase("fit"):
            quantized = self._quantizer.quantize(layer)
        with self._timer.phase("write"):
            for name, tensor in quantized.tensors.items():
                self._writer.add(layer.prefix + name, tensor)
        for linear, scales in quantized.scales.items():
            self._scales[layer.prefix + linear] = scales
        self._errors += quantized.errors
        for unit in layer.units:
            linears = tuple(layer.prefix + linear for linear in unit.linears)
            self._linears.setdefault(layer.full_name(unit.block), []).extend(linears)
        if layer.stats is not None:
            self._starved += [(layer.full_name(""), each) for each in layer.stats.starved]

    def finish(self, calibration: Calibration | None, shared: PhaseTimer) -> QuantizedCheckpoint:
        """Complete the folder, read it all back, and rename it to ``out``.

        ``calibration`` and ``shared`` are the samples and the timer of the whole pass, which count
        for recipes that read inputs.
        """
        source = self._model.reader.folder
        with self._timer.phase("write"):
            self._writer.finish()
            wide = self._rewrite_wide()
            copy_beside(source, self._folder)
            quantization = self._config(wide).model_dump(mode="json")
            write_config(source, self._folder, quantization)
        with self._timer.phase("verify"):
            verify_weights(
                self._folder,
                self._model.reader,
                {name: self._expected(name, wide) for name in self._scales},
                cache_scales=self.recipe.kv_cache is not None,
                device=self._model.device,
            )
            facts = read_facts(self._folder)
        timers = [shared, self._timer] if self.needs_inputs else [self._timer]
        checkpoint = self._describe(facts, calibration if self.needs_inputs else None, timers)
        write_record(self._folder, self._key, checkpoint)
        self._stage.keep()
        self.close()
        return checkpoint

    def close(self) -> None:
        """Remove the hidden folder, if it is still there."""
        self._stack.close()

    def _rewrite_wide(self) -> frozenset[str]:
        """Rewrite the units that a mixed recipe keeps; returns the names of their linears."""
        if self._wide is None or self.recipe.mixed is None:
            return frozenset()
        costs = [self._cost(error) for error in self._errors]
        units = choose_units(costs, self.recipe.mixed.bits_per_weight)
        self._errors = list(mark_wider(self._errors, units))
        wide = {name: self._scales[name] for unit in units for name in self._linears[unit]}
        narrow = self._folder / _NARROW
        rewrite(narrow, self._folder, self._model.reader, wide, self._wide)
        shutil.rmtree(narrow)
        return frozenset(wide)

    def _cost(self, error: UnitError) -> UnitCost:
        bits = wide_bits = 0
        for name in self._linears[error.unit]:
            outputs, inputs = self._model.reader.headers[f"{name}.weight"].shape
            bits += self._grid.stored_bits(outputs, inputs)
            wide_bits += outputs * inputs * 16
        return UnitCost(error=error, bits=bits, wide_bits=wide_bits)

    def _expected(self, linear: str, wide: frozenset[str]) -> Expected:
        if linear in wide:
            return Expected(grid=None, scales=self._scales[linear], nearest=True)
        scales, nearest = self._scales[linear], self._method.nearest
        return Expected(grid=self._grid, scales=scales, nearest=nearest)

    def _config(self, wide: frozenset[str]) -> QuantizationConfig:
        grid = self._grid
        if self.recipe.method == "gptq" and grid.packed:
            grid = with_static_order(grid)
        return quantization_config(
            grid,
            ignore=[*self._model.architecture.ignore, *sorted(wide)],
            kv_cache=self.recipe.kv_cache is not None,
        )

    def _describe(
        self, facts: ModelFacts, calibration: Calibration | None, timers: Sequence[PhaseTimer]
    ) -> QuantizedCheckpoint:
        """The record of the folder, whose files have the ``facts``, under its later name."""
        recipe, device = self.recipe, self._model.device
        phases = tuple(phase for timer in timers for phase in timer.phases)
        peaks = [timer.peak_bytes for timer in timers if timer.peak_bytes is not None]
        return describe(
            self._out,
            self._key,
            facts,
            calibration=None if calibration is None else calibration.facts,
            units=tuple(self._errors),
            seconds=sum(phase.seconds for phase in phases),
            peak_memory_bytes=max(peaks, default=None),
            phases=phases,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            kept_scheme=None if recipe.mixed is None else SIXTEEN_BIT,
            kv_cache=recipe.kv_cache,
            warnings=(
                *(() if calibration is None else calibration.facts.warnings),
                *no_gain_warning(recipe.method, self._errors),
                *_starved_warning(self._starved),
            ),
        )


def no_gain_warning(method: str, errors: Sequence[UnitError]) -> tuple[str, ...]:
    """A warning where a search improved no unit: each falls back to nearest without a message.

    SmoothQuant is left out: it accepts weight error, which these errors are, for less input error.
    """
    searched = [unit for unit in errors if not unit.kept]
    if "smooth" in method or method == "rtn" or not searched:
        return ()
    if any(unit.error < _NO_GAIN * unit.rtn_error for unit in searched):
        return ()
    return (
        f"{method} brought no layer nearer to 16 bit than rounding to nearest; give more "
        "calibration text, or compare with --device cpu",
    )


def _starved_warning(starved: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Which experts the calibration text hardly reaches, and what was done about it."""
    if not starved:
        return ()
    named = ", ".join(f"{layer}experts.{expert}" for layer, expert in starved[:_NAMED])
    more = f" and {len(starved) - _NAMED} more" if len(starved) > _NAMED else ""
    return (
        f"fewer than {FEWEST} tokens of the calibration text reached {named}{more}; a sample of "
        "their layers' other tokens was added; give more or more varied text",
    )
