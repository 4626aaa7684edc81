"""The pass over the layers: each is measured once, then quantized by every recipe."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from whet.checkpoint import checkpoint_doubts, read_facts
from whet.checkpoint.formats import FLOATS
from whet.checkpoint.shards import ShardWriter, TensorReader
from whet.core.errors import WhetError
from whet.core.protocols import Progress
from whet.core.records.model import ModelFacts
from whet.core.records.quant import QuantizedCheckpoint, UnitError
from whet.core.spec import GROUPED
from whet.core.spec.recipe import Method as MethodName
from whet.core.staging import require_space, staged
from whet.core.torch_device import pick_device
from whet.quant import awq, gptq, smoothquant
from whet.quant.architecture import Architecture, linear_dtype
from whet.quant.calibration import Among, Calibration, load_for
from whet.quant.checkpoint_record import CacheKey, copy_beside, write_config, write_record
from whet.quant.fold import LinearScales
from whet.quant.gram import float32_products
from whet.quant.layer import Fit, LayerQuantizer, SourceLayer
from whet.quant.mixed import UnitCost, choose_units, mark_wider, rewrite
from whet.quant.phase_timer import PhaseTimer
from whet.quant.rounding import make_grid, quantization_config
from whet.quant.skeleton import FEWEST
from whet.quant.stream import LayerStream
from whet.quant.suitability import FOLDING, Source, inputs_needed, read_source
from whet.quant.unit import round_to_nearest
from whet.quant.verify import verify_weights

Outcome = QuantizedCheckpoint | WhetError
METHODS: Final[Mapping[MethodName, Fit]] = {
    "awq": awq.fit, "gptq": gptq.fit, "smoothquant": smoothquant.fit, "rtn": round_to_nearest,
}  # fmt: skip
_NARROW: Final = "narrow"
_NO_GAIN: Final = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceModel:
    """The source, which all recipes share. ``dtype`` is that of its linears."""

    source: Source
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
        self.needs_inputs = bool(inputs_needed(key.recipe))
        """Whether calibration text has to run through the layers."""
        self._out, self._key, self._model = out, key, model
        self._grid = make_grid(self.recipe.scheme, self.recipe.group_size, model.dtype)
        self._wide = None if self.recipe.mixed is None else model.dtype
        self._timer = PhaseTimer(model.device)
        self._stack = ExitStack()
        self._scales: dict[str, LinearScales] = {}
        self._errors: list[UnitError] = []
        self._linears: dict[str, list[str]] = {}
        self._starved: list[tuple[str, int]] = []

    def open(self) -> None:
        """Check the recipe against the model and make the hidden folder.

        ``QuantizationError`` where the two do not fit, ``StorageError`` where the disk is too
        small.
        """
        recipe, model = self.recipe, self._model
        model.source.require_suitable(recipe)
        needed_bytes = model.facts.weight_bytes * self._grid.bits // 8
        require_space(self._out, needed_bytes, "the checkpoint")
        self._stage = self._stack.enter_context(staged(self._out))
        self._folder = shards = self._stage.folder
        if self._wide is not None:
            shards = self._folder / _NARROW
            shards.mkdir()
        self._writer = ShardWriter(shards)
        self._quantizer = LayerQuantizer(
            fit=METHODS[recipe.method],
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
            tensors, scales, errors = self._quantizer.quantize(layer)
        with self._timer.phase("write"):
            for name, tensor in tensors.items():
                self._writer.add(layer.prefix + name, tensor)
        self._scales |= {layer.prefix + linear: each for linear, each in scales.items()}
        self._errors += errors
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
            quantization = quantization_config(
                self._grid,
                ignore=[*self._model.architecture.ignore, *sorted(wide)],
                kv_cache=self.recipe.kv_cache is not None,
            )
            write_config(source, self._folder, quantization.model_dump(mode="json"))
        with self._timer.phase("verify"):
            verify_weights(
                self._folder,
                self._model.reader,
                {k: (None if k in wide else self._grid, s) for k, s in self._scales.items()},
                nearest=self.recipe.method != "gptq",
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
        headers = self._model.reader.headers
        shapes = (headers[f"{name}.weight"].shape for name in self._linears[error.unit])
        return UnitCost(error=error, bits=sum(self._grid.stored_bits(*shape) for shape in shapes))

    def _describe(
        self, facts: ModelFacts, calibration: Calibration | None, timers: Sequence[PhaseTimer]
    ) -> QuantizedCheckpoint:
        """The record of the folder, whose files have the ``facts``, under its later name."""
        recipe, device = self.recipe, self._model.device
        phases = tuple(phase for timer in timers for phase in timer.phases)
        peaks = [timer.peak_bytes for timer in timers if timer.peak_bytes is not None]
        return QuantizedCheckpoint(
            path=str(self._out.resolve()),
            method=recipe.method,
            scheme=recipe.scheme,
            group_size=recipe.group_size if recipe.scheme in GROUPED else None,
            source_weights_sha256=self._key.source_weights_sha256,
            weights_sha256=facts.weights_sha256,
            weight_bytes=facts.weight_bytes,
            bits_per_weight=facts.stored.bits_per_weight,
            calibration=None if calibration is None else calibration.facts,
            units=tuple(self._errors),
            seconds=sum(phase.seconds for phase in phases),
            peak_memory_bytes=max(peaks, default=None),
            phases=phases,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            kv_cache=recipe.kv_cache,
            warnings=(
                *checkpoint_doubts(self._model.facts),
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
    layer, expert = starved[0]
    return (
        f"fewer than {FEWEST} tokens of the calibration text reached {len(starved)} experts "
        f"({layer}experts.{expert} first); a sample of their layers' other tokens was added; give "
        "more or more varied text",
    )


def run_pass(
    facts: ModelFacts,
    keys: Mapping[str, tuple[Path, CacheKey]],
    *,
    calibration: Path,
    among: Among | None = None,
    progress: Progress,
    device: str | None,
) -> dict[str, Outcome]:
    """Write a checkpoint for each of ``keys``; one that fails has its error as the outcome.

    Raises errors that concern all of them: the source, the calibration text, the device.
    """
    model = read_model(facts, device)
    timer = PhaseTimer(model.device)
    outcomes: dict[str, Outcome] = {}
    jobs: dict[str, RecipeJob] = {}

    def for_each_job(step: Callable[[RecipeJob], QuantizedCheckpoint | None]) -> None:
        for name, job in list(jobs.items()):
            try:
                checkpoint = step(job)
            except WhetError as error:
                jobs.pop(name).close()
                outcomes[name] = error
            else:
                if checkpoint is not None:
                    outcomes[name] = checkpoint

    with ExitStack() as stack, float32_products("high"):
        for name, (out, key) in keys.items():
            jobs[name] = RecipeJob(out, key, model)
            stack.callback(jobs[name].close)
        for_each_job(RecipeJob.open)
        with timer.phase("calibrate"):
            # Recipes that share a pass share their calibration samples.
            recipe = next((job.recipe for job in jobs.values() if job.needs_inputs), None)
            samples = None if recipe is None else load_for(recipe, facts, calibration, among)
        stream = None if samples is None else open_stream(samples, model, timer)
        prefixes = model.architecture.prefixes
        for tensor_name in model.reader.headers:
            if not tensor_name.startswith(prefixes):
                tensor = model.reader.read(tensor_name)
                for_each_job(partial(RecipeJob.add_tensor, name=tensor_name, tensor=tensor))
        for index in range(len(prefixes)):
            progress(index, len(prefixes) + 1)
            layer = _read_layer(index, model, stream, timer)
            for_each_job(partial(RecipeJob.add_layer, layer=layer))
        progress(len(prefixes), len(prefixes) + 1)
        for_each_job(partial(RecipeJob.finish, calibration=samples, shared=timer))
    progress(len(prefixes) + 1, len(prefixes) + 1)
    return outcomes


def read_model(facts: ModelFacts, device: str | None) -> SourceModel:
    """Read the headers; ``QuantizationError`` where the architecture cannot be quantized."""
    source = read_source(Path(facts.path))
    reader = TensorReader(source.folder)
    if facts.tied_embeddings:  # engines leave a stored head out, and so does the copy
        names = [name for name in reader.headers if not name.endswith("lm_head.weight")]
        reader.headers = {name: reader.headers[name] for name in names}
    return SourceModel(
        source=source,
        reader=reader,
        facts=facts,
        architecture=source.architecture,
        dtype=getattr(torch, FLOATS[linear_dtype(source.headers, source.architecture.linears)]),
        device=pick_device(device),
    )


def open_stream(samples: Calibration, model: SourceModel, timer: PhaseTimer) -> LayerStream:
    """The stream of hidden states, which begins with the embeddings of the samples."""
    with timer.phase("read"):
        stream = LayerStream(model.reader.folder, samples.ids, model.architecture, model.device)
        name = stream.skeleton.embedding_of(model.reader.headers)
        table = model.reader.read(name, model.device)
    with timer.phase("forward"):
        stream.embed(table)
    return stream


def _read_layer(
    index: int, model: SourceModel, stream: LayerStream | None, timer: PhaseTimer
) -> SourceLayer:
    prefix = model.architecture.prefixes[index]
    with timer.phase("read"):
        tensors = model.reader.read_below(prefix, model.device)
    stats = None
    if stream is not None:
        with timer.phase("forward"):
            stats = stream.measure(index, tensors)
    return SourceLayer(
        prefix=prefix, units=model.architecture.units[index], tensors=tensors, stats=stats
    )
