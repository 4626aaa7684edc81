"""One recipe on its way from the source's layers to a finished folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whet.checkpoint import read_facts
from whet.core.records import ModelFacts, QuantizedCheckpoint, UnitError
from whet.core.spec import GROUPED, SIXTEEN_BIT, RecipeSpec
from whet.core.staging import require_space, staged
from whet.quant.architecture import Architecture, require_groups, require_measurable
from whet.quant.calibration import Calibration
from whet.quant.clock import Clock
from whet.quant.finished import Order, write_finished
from whet.quant.layer import Basis, LayerQuantizer, LayerTask, Wider
from whet.quant.methods import get_method
from whet.quant.mixed import Choice, choose_units, mark_kept, rewrite
from whet.quant.packing import quantization_config
from whet.quant.rounding import Grid, make_grid, with_static_order
from whet.quant.source import Source
from whet.quant.verify import Expected, verify_copies, verify_weights
from whet.quant.writer import ShardWriter, copy_beside, write_config

_NARROW = "narrow"
_WORTH = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The source, as every recipe sees it. ``dtype`` is that of its linears."""

    source: Source
    facts: ModelFacts
    architecture: Architecture
    dtype: torch.dtype
    device: torch.device


def measures(recipe: RecipeSpec) -> str | None:
    """Which part of a recipe needs the inputs of the layers, None where none does."""
    if get_method(recipe.method).needs_inputs:
        return f"method {recipe.method}"
    if recipe.scheme == "FP8":
        return "the scheme FP8 (its inputs have a fixed scale)"
    if recipe.kv_cache is not None:
        return "an FP8 KV cache with scales"
    return None if recipe.mixed is None else "mixed precision"


class Making:
    """Holds a hidden folder open until ``finish`` or ``drop``."""

    def __init__(self, order: Order, model: Model) -> None:
        """Check the recipe against the model; ``QuantizationError`` where they do not fit."""
        self.order = order
        self._model = model
        recipe = order.recipe
        if (why := measures(recipe)) is not None:
            require_measurable(model.architecture, why)
        self._grid = make_grid(recipe.scheme, recipe.group_size, model.dtype)
        self._wider = _wider(recipe, model.dtype)
        shapes = {name: header.shape for name, header in model.source.headers.items()}
        wide = None if self._wider is None else self._wider.grid
        for grid in (self._grid, wide):
            if grid is not None:
                require_groups(shapes, model.architecture.linears, grid.group_size)
        needed_bytes = model.facts.weight_bytes * self._grid.bits // 8
        require_space(order.out, needed_bytes, "the checkpoint")
        self.clock = Clock(model.device)
        self._stack = ExitStack()
        self._bases: dict[str, Basis] = {}
        self._errors: list[UnitError] = []
        self._units: dict[str, tuple[str, ...]] = {}

    def open(self) -> None:
        """Make the hidden folder."""
        self._stage = self._stack.enter_context(staged(self.order.out))
        self._folder = target = self._stage.folder
        if self._wider is not None:
            target = self._folder / _NARROW
            target.mkdir()
        self._writer = ShardWriter(target)
        recipe, model = self.order.recipe, self._model
        self._quantizer = LayerQuantizer(
            method=get_method(recipe.method),
            grid=self._grid,
            wider=self._wider,
            head_dim=model.facts.head_dim,
            norm_offset=model.architecture.norm_offset,
            clip=recipe.clip,
            kv_cache=recipe.kv_cache is not None,
            device=model.device,
        )

    def add_plain(self, name: str, tensor: Tensor) -> None:
        """A tensor outside the decoder's layers."""
        self._writer.add(name, tensor)

    def add_layer(self, task: LayerTask) -> None:
        """Quantize one layer and write it."""
        with self.clock.phase("fit"):
            layer = self._quantizer.quantize(task)
        with self.clock.phase("write"):
            for name, tensor in layer.tensors.items():
                self._writer.add(task.prefix + name, tensor)
        self._bases |= {task.prefix + linear: basis for linear, basis in layer.bases.items()}
        self._errors += layer.errors
        named = {error.unit: unit for error, unit in zip(layer.errors, task.units, strict=False)}
        for name, unit in named.items():
            self._units[name] = tuple(task.prefix + linear for linear in unit.linears)

    def finish(self, calibration: Calibration | None, shared: Clock | None) -> QuantizedCheckpoint:
        """Complete the folder, read it all back, and give it its name.

        ``shared`` is the clock of what was done once for several recipes.
        """
        with self.clock.phase("write"):
            self._writer.finish()
            kept = self._keep_wide()
            names = copy_beside(self._model.source.folder, self._folder)
            write_config(self._model.source.folder, self._folder, self._config(kept))
        with self.clock.phase("verify"):
            verify_copies(self._folder, self._model.source.folder, names)
            verify_weights(
                self._folder,
                self._model.source,
                {name: self._expected(name, kept) for name in self._bases},
                cache_scales=self.order.recipe.kv_cache is not None,
                device=self._model.device,
            )
            done = self._describe(calibration)
        done = self._timed(done, shared)
        write_finished(self._folder, self.order.origin, done)
        self._stage.keep()
        self._stack.close()
        return done

    def drop(self) -> None:
        """Leave nothing behind."""
        self._stack.close()

    def _keep_wide(self) -> frozenset[str]:
        """Rewrite the kept units in their wider form; returns the names of their linears."""
        if self._wider is None or self.order.recipe.mixed is None:
            return frozenset()
        units = choose_units(
            [self._choice(item, self._wider) for item in self._errors], self.order.recipe.mixed
        )
        self._errors = list(mark_kept(self._errors, units))
        kept = {name: self._bases[name] for unit in units for name in self._units[unit]}
        narrow = self._folder / _NARROW
        rewrite(narrow, self._folder, self._model.source, kept, self._wider)
        for file in narrow.iterdir():
            file.unlink()
        narrow.rmdir()
        return frozenset(kept)

    def _choice(self, error: UnitError, wider: Wider) -> Choice:
        shapes = [self._shape(name) for name in self._units[error.unit]]
        wide_bits = [
            outputs * inputs * 16 if wider.grid is None else wider.grid.stored_bits(outputs, inputs)
            for outputs, inputs in shapes
        ]
        bits = sum(self._grid.stored_bits(*shape) for shape in shapes)
        return Choice(error=error, bits=bits, wide_bits=sum(wide_bits))

    def _shape(self, linear: str) -> tuple[int, int]:
        outputs, inputs = self._model.source.headers[f"{linear}.weight"].shape
        return outputs, inputs

    def _expected(self, linear: str, kept: frozenset[str]) -> Expected:
        if linear in kept and self._wider is not None:
            return Expected(grid=self._wider.grid, basis=self._bases[linear], nearest=True)
        nearest = get_method(self.order.recipe.method).nearest
        return Expected(grid=self._grid, basis=self._bases[linear], nearest=nearest)

    def _config(self, kept: frozenset[str]) -> dict[str, Any]:
        grid = self._grid
        if "gptq" in self.order.recipe.method and grid.packed:
            grid = with_static_order(grid)
        groups = [(grid, [name for name in self._bases if name not in kept])]
        ignore = list(self._model.architecture.left)
        if kept and self._wider is not None:
            if self._wider.grid is None:
                ignore += sorted(kept)
            else:
                groups.append((self._wider.grid, sorted(kept)))
        return quantization_config(
            [group for group in groups if group[1]],
            ignore=ignore,
            kv_cache=self.order.recipe.kv_cache,
        )

    def _describe(self, calibration: Calibration | None) -> QuantizedCheckpoint:
        """The record of what lies in the folder, read from its files, under its later name."""
        recipe, written = self.order.recipe, read_facts(self._folder)
        device = self._model.device
        return QuantizedCheckpoint(
            path=str(self.order.out.resolve()),
            method=recipe.method,
            scheme=recipe.scheme,
            group_size=recipe.group_size if recipe.scheme in GROUPED else None,
            source_weights_sha256=self._model.facts.weights_sha256,
            weights_sha256=written.weights_sha256,
            weight_bytes=written.weight_bytes,
            bits_per_weight=written.stored.bits_per_weight,
            calibration=None if calibration is None else calibration.facts,
            units=tuple(self._errors),
            seconds=0.0,
            peak_memory_bytes=None,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            kept_scheme=None if recipe.mixed is None else recipe.mixed.keep,
            kv_cache=recipe.kv_cache,
            warnings=(
                *(() if calibration is None else calibration.facts.warnings),
                *useless(recipe.method, self._errors),
            ),
        )

    def _timed(self, done: QuantizedCheckpoint, shared: Clock | None) -> QuantizedCheckpoint:
        clocks = [self.clock] if shared is None else [shared, self.clock]
        phases = tuple(phase for clock in clocks for phase in clock.phases)
        peaks = [clock.peak_bytes for clock in clocks if clock.peak_bytes is not None]
        return replace(
            done,
            seconds=sum(phase.seconds for phase in phases),
            peak_memory_bytes=max(peaks, default=None),
            phases=phases,
        )


def useless(method: str, errors: Sequence[UnitError]) -> tuple[str, ...]:
    """A warning where a search bought nothing anywhere: each of its guards falls back in silence.

    SmoothQuant is left out: it trades weight error, which these errors are, for the inputs'.
    """
    searched = [unit for unit in errors if not unit.kept]
    if "smooth" in method or method == "rtn" or not searched:
        return ()
    if any(unit.error < _WORTH * unit.rtn_error for unit in searched):
        return ()
    return (
        f"{method} brought no layer nearer to 16 bit than rounding to nearest; give more "
        "calibration text, or compare with --device cpu",
    )


def _wider(recipe: RecipeSpec, dtype: torch.dtype) -> Wider | None:
    if recipe.mixed is None:
        return None
    grid: Grid | None = None
    if recipe.mixed.keep != SIXTEEN_BIT:
        grid = make_grid(recipe.mixed.keep, recipe.group_size, dtype)
    return Wider(grid=grid, dtype=dtype)
