"""The work of ``quantize``, layer by layer: measure once, then fit and write every recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from whet.core.errors import QuantizationError, WhetError
from whet.core.protocols import Progress
from whet.core.records import ModelFacts, QuantizedCheckpoint
from whet.core.spec import CalibrationSpec
from whet.core.torch_device import pick_device
from whet.quant.architecture import Architecture, read_architecture
from whet.quant.calibration import Calibration, load_calibration
from whet.quant.clock import Clock
from whet.quant.finished import Order
from whet.quant.gram import float32_products
from whet.quant.layer import LayerTask
from whet.quant.making import Making, Model, measures
from whet.quant.source import Source
from whet.quant.stream import LayerStream

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

Outcome = QuantizedCheckpoint | WhetError


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is to be done. ``calibration`` says how the file at ``calibration_path`` is drawn."""

    source: Path
    facts: ModelFacts
    calibration_path: Path
    calibration: CalibrationSpec
    progress: Progress


def make_all(orders: Mapping[str, Order], task: Task, *, device: str | None) -> dict[str, Outcome]:
    """Make every order; one that cannot be made has its error instead, and stops no other.

    Raises what concerns them all: the source, the calibration text, the device.
    """
    where = pick_device(device)
    model = _read_model(task, where)
    clock = Clock(where)
    with _Makings() as makings, float32_products("high"):
        for name, order in orders.items():
            makings.start(name, order, model)
        with clock.phase("calibrate"):
            calibration = _calibrate(task, makings)
        _run_layers(task, model, makings, calibration, clock)

        def finish(making: Making) -> QuantizedCheckpoint:
            measured = measures(making.order.recipe) is not None
            return making.finish(calibration, clock) if measured else making.finish(None, None)

        makings.each(finish)
    task.progress(task.facts.layers + 1, task.facts.layers + 1)
    return {name: makings.outcomes[name] for name in orders}


class _Makings:
    """The recipes that are under way; whichever way this ends, none leaves a half-made folder."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._alive: dict[str, Making] = {}

    def __enter__(self) -> _Makings:
        return self

    def __exit__(self, *error: object) -> None:
        for making in self._alive.values():
            making.drop()

    def start(self, name: str, order: Order, model: Model) -> None:
        """Check the order and open its folder."""
        try:
            making = Making(order, model)
            making.open()
        except WhetError as error:
            self.outcomes[name] = error
        else:
            self._alive[name] = making

    def each(self, action: Callable[[Making], QuantizedCheckpoint | None]) -> None:
        """Do it for each; one that fails is dropped, its error kept; a checkpoint ends it."""
        for name, making in list(self._alive.items()):
            try:
                done = action(making)
            except WhetError as error:
                making.drop()
                self.outcomes[name] = error
                del self._alive[name]
            else:
                if done is not None:
                    self.outcomes[name] = done
                    del self._alive[name]

    @property
    def recipes_measure(self) -> bool:
        """Whether any of them needs the inputs of the layers."""
        return any(measures(making.order.recipe) for making in self._alive.values())


def _read_model(task: Task, device: torch.device) -> Model:
    source = Source(task.source)
    config = json.loads((task.source / "config.json").read_text(encoding="utf-8"))
    shapes = {name: header.shape for name, header in source.headers.items()}
    architecture = read_architecture(config, shapes)
    return Model(
        source=source,
        facts=task.facts,
        architecture=architecture,
        dtype=_linear_dtype(source, architecture),
        device=device,
    )


def _linear_dtype(source: Source, architecture: Architecture) -> torch.dtype:
    """The dtype of the linears, which scales take too."""
    dtypes = {source.headers[f"{linear}.weight"].dtype for linear in architecture.linears}
    if len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
        raise QuantizationError(
            f"the linear layers are stored as {', '.join(sorted(dtypes))}; one of "
            f"{', '.join(_DTYPES)} for all of them is needed: convert the checkpoint first"
        )
    return _DTYPES[dtypes.pop()]


def _calibrate(task: Task, makings: _Makings) -> Calibration | None:
    if not makings.recipes_measure:
        return None
    wanted = task.calibration
    return load_calibration(
        task.calibration_path,
        task.source,
        samples=wanted.samples,
        max_tokens=min(wanted.max_tokens, task.facts.max_position),
        seed=wanted.seed,
    )


def _run_layers(
    task: Task,
    model: Model,
    makings: _Makings,
    calibration: Calibration | None,
    clock: Clock,
) -> None:
    """Every tensor of the source goes to every recipe, the decoder's layers in turn."""
    prefixes = model.architecture.prefixes
    stream = None
    if calibration is not None:
        with clock.phase("read"):
            stream = LayerStream(
                model.source.folder, calibration.ids, model.architecture, model.device
            )
        _embed(stream, model, clock)
    for name in model.source.headers:
        if not name.startswith(prefixes):
            tensor = model.source.read(name)
            makings.each(partial(Making.add_plain, name=name, tensor=tensor))
    for index, prefix in enumerate(prefixes):
        task.progress(index, len(prefixes) + 1)
        layer = _measured_layer(index, prefix, model, stream, clock)
        makings.each(partial(Making.add_layer, task=layer))
    task.progress(len(prefixes), len(prefixes) + 1)


def _embed(stream: LayerStream, model: Model, clock: Clock) -> None:
    names = [name for name in model.source.headers if name.endswith("embed_tokens.weight")]
    if not names:
        raise QuantizationError(
            "the checkpoint has no embed_tokens.weight, which its architecture needs; download the "
            "checkpoint again"
        )
    with clock.phase("read"):
        table = model.source.read(names[0], model.device)
    with clock.phase("forward"):
        stream.embed(table)


def _measured_layer(
    index: int, prefix: str, model: Model, stream: LayerStream | None, clock: Clock
) -> LayerTask:
    with clock.phase("read"):
        tensors = model.source.read_below(prefix, model.device)
    stats = None
    if stream is not None:
        with clock.phase("forward"):
            stats = stream.measure(index, tensors)
    units = model.architecture.units[index]
    return LayerTask(prefix=prefix, units=units, tensors=tensors, stats=stats)
