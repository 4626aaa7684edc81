"""The work of ``quantize``, layer by layer: measure, fit, write, then read everything back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from whet.checkpoint import read_facts
from whet.core.errors import QuantizationError, UsageError
from whet.core.protocols import Progress
from whet.core.records import ModelFacts, QuantizedCheckpoint, UnitError
from whet.core.spec import RecipeSpec
from whet.core.units import NS_PER_S
from whet.quant.architecture import layer_prefix, linear_names, require_shapes
from whet.quant.calibration import Calibration, load_calibration
from whet.quant.finished import Origin, write_finished
from whet.quant.layer import Basis, LayerQuantizer
from whet.quant.methods import get_method
from whet.quant.packing import quantization_config
from whet.quant.rounding import Grid, make_grid
from whet.quant.source import Source
from whet.quant.staging import require_space, staged
from whet.quant.stream import LayerStream
from whet.quant.verify import verify_copies, verify_weights
from whet.quant.writer import ShardWriter, copy_beside, write_config

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is to be done."""

    source: Path
    facts: ModelFacts
    recipe: RecipeSpec
    calibration_path: Path
    origin: Origin
    progress: Progress


def quantize_into(out: Path, task: Task, *, device: str | None) -> QuantizedCheckpoint:
    """Write the checkpoint ``out``; see ``quantize`` for what it raises."""
    started_ns = time.monotonic_ns()
    where = pick_device(device)
    require_space(out, task.facts.weight_bytes // 2)
    source = Source(task.source)
    grid = make_grid(task.recipe, _stored_dtype(source, task.facts, task.recipe.group_size))
    calibration = _calibrate(task)
    with _within_memory(where), staged(out) as folder:
        quantizer = _quantizer(task, grid, where)
        bases, errors = _write_weights(task, source, ShardWriter(folder), calibration, quantizer)
        names = copy_beside(task.source, folder)
        write_config(task.source, folder, quantization_config(grid))
        verify_copies(folder, task.source, names)
        verify_weights(folder, source, bases, grid, where)
        done = _describe(task, folder, out, calibration, device=where)
        seconds = (time.monotonic_ns() - started_ns) / NS_PER_S
        done = replace(done, units=errors, seconds=seconds)
        write_finished(folder, task.origin, done)
    task.progress(task.facts.layers + 1, task.facts.layers + 1)
    return done


def pick_device(wanted: str | None) -> torch.device:
    """The device asked for, or the first GPU, or the CPU; ``UsageError`` where it is not there."""
    available = torch.cuda.is_available()
    try:
        device = torch.device(wanted or ("cuda" if available else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"there is no device {wanted!r}; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not available):
        raise UsageError(f"the device {wanted!r} is not available here; use cpu")
    return device


def _calibrate(task: Task) -> Calibration | None:
    if not get_method(task.recipe.method).needs_inputs:
        return None
    wanted = task.recipe.calibration
    return load_calibration(
        task.calibration_path,
        task.source,
        samples=wanted.samples,
        max_tokens=min(wanted.max_tokens, task.facts.max_position),
        seed=wanted.seed,
    )


def _stored_dtype(source: Source, facts: ModelFacts, group_size: int) -> torch.dtype:
    """The dtype of the linears, which scales take too, once every linear is found sound."""
    linears = linear_names(facts.layers)
    require_shapes(
        {name: header.shape for name, header in source.headers.items()}, linears, group_size
    )
    dtypes = {source.headers[f"{linear}.weight"].dtype for linear in linears}
    if len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
        raise QuantizationError(
            f"the linear layers are stored as {', '.join(sorted(dtypes))}; one of "
            f"{', '.join(_DTYPES)} for all of them is needed: convert the checkpoint first"
        )
    return _DTYPES[dtypes.pop()]


def _quantizer(task: Task, grid: Grid, device: torch.device) -> LayerQuantizer:
    method = get_method(task.recipe.method)
    return LayerQuantizer(method=method, grid=grid, head_dim=task.facts.head_dim, device=device)


def _stream(
    source: Source, calibration: Calibration | None, device: torch.device
) -> LayerStream | None:
    if calibration is None:
        return None
    stream = LayerStream(source.folder, calibration.ids, device)
    stream.embed(source.read("model.embed_tokens.weight"))
    return stream


def _write_weights(
    task: Task,
    source: Source,
    writer: ShardWriter,
    calibration: Calibration | None,
    quantizer: LayerQuantizer,
) -> tuple[Mapping[str, Basis], tuple[UnitError, ...]]:
    """Every tensor of the source, its decoder's linears packed; their bases and unit errors."""
    stream = _stream(source, calibration, quantizer.device)
    bases: dict[str, Basis] = {}
    errors: list[UnitError] = []
    prefixes = tuple(layer_prefix(index) for index in range(task.facts.layers))
    for name in source.headers:
        if not name.startswith(prefixes):
            writer.add(name, source.read(name))
    for index, prefix in enumerate(prefixes):
        task.progress(index, len(prefixes) + 1)
        tensors = source.read_below(prefix)
        stats = {} if stream is None else stream.measure(index, tensors)
        layer = quantizer.quantize(index, tensors, stats)
        for name, tensor in layer.tensors.items():
            writer.add(prefix + name, tensor)
        bases |= {prefix + linear: basis for linear, basis in layer.bases.items()}
        errors += layer.errors
    task.progress(len(prefixes), len(prefixes) + 1)
    writer.finish()
    return bases, tuple(errors)


def _describe(
    task: Task, folder: Path, out: Path, calibration: Calibration | None, *, device: torch.device
) -> QuantizedCheckpoint:
    """The record of what lies in ``folder``, read from its files, under the name it will have.

    Units and seconds are filled in by the caller, who knows them last.
    """
    written = read_facts(folder)
    return QuantizedCheckpoint(
        path=str(out.resolve()),
        method=task.recipe.method,
        scheme=task.recipe.scheme,
        group_size=task.recipe.group_size,
        source_weights_sha256=task.facts.weights_sha256,
        weights_sha256=written.weights_sha256,
        weight_bytes=written.weight_bytes,
        bits_per_weight=written.stored.bits_per_weight,
        calibration=None if calibration is None else calibration.facts,
        units=(),
        seconds=0.0,
        peak_memory_bytes=_peak_memory(device),
        device=_device_name(device),
    )


@contextmanager
def _within_memory(device: torch.device) -> Iterator[None]:
    """Count the peak from here, and say what to do where the device's memory runs out."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise QuantizationError(
            f"the memory of {device} ran out; free it, or quantize on the CPU with --device cpu"
        ) from error


def _peak_memory(device: torch.device) -> int | None:
    """Device memory at its highest; None on a CPU, whose process holds more than this work."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
