"""The pass over the layers: measure each layer once, then quantize it by every recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from whet.checkpoint.files import read_json
from whet.core.errors import QuantizationError, WhetError
from whet.core.protocols import Progress
from whet.core.records.model import ModelFacts
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.torch_device import pick_device
from whet.quant.architecture import Architecture, read_architecture
from whet.quant.calibration import Calibration, load_for
from whet.quant.checkpoint_record import CacheKey
from whet.quant.gram import float32_products
from whet.quant.layer import SourceLayer
from whet.quant.phase_timer import PhaseTimer
from whet.quant.recipe_job import RecipeJob, SourceModel
from whet.quant.stream import LayerStream
from whet.quant.tensor_reader import TensorReader

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

Outcome = QuantizedCheckpoint | WhetError


def run_pass(
    facts: ModelFacts,
    keys: Mapping[str, tuple[Path, CacheKey]],
    *,
    calibration: Path,
    progress: Progress,
    device: str | None,
) -> dict[str, Outcome]:
    """Write a checkpoint for each of ``keys``; one that fails has its error as the outcome.

    Raises errors that concern all of them: the source, the calibration text, the device.
    """
    model = _read_model(facts, pick_device(device))
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
            samples = None if recipe is None else load_for(recipe, facts, calibration)
        stream = None if samples is None else _open_stream(samples, model, timer)
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


def _read_model(facts: ModelFacts, device: torch.device) -> SourceModel:
    reader = TensorReader(Path(facts.path))
    shapes = {name: header.shape for name, header in reader.headers.items()}
    architecture = read_architecture(read_json(reader.folder / "config.json"), shapes)
    return SourceModel(
        reader=reader,
        facts=facts,
        architecture=architecture,
        dtype=_linear_dtype(reader, architecture),
        device=device,
    )


def _linear_dtype(reader: TensorReader, architecture: Architecture) -> torch.dtype:
    """The dtype of the linears, which scales take too."""
    dtypes = {reader.headers[f"{linear}.weight"].dtype for linear in architecture.linears}
    if len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
        raise QuantizationError(
            f"the linear layers are stored as {', '.join(sorted(dtypes))}",
            fix=f"one of "
            f"{', '.join(_DTYPES)} for all of them is needed: convert the checkpoint first",
        )
    return _DTYPES[dtypes.pop()]


def _open_stream(samples: Calibration, model: SourceModel, timer: PhaseTimer) -> LayerStream:
    """The stream of hidden states, which begins with the embeddings of the samples."""
    with timer.phase("read"):
        stream = LayerStream(model.reader.folder, samples.ids, model.architecture, model.device)
    names = [name for name in model.reader.headers if name.endswith("embed_tokens.weight")]
    if not names:
        raise QuantizationError(
            "the checkpoint has no embed_tokens.weight, which its architecture needs",
            fix="download the checkpoint again",
        )
    with timer.phase("read"):
        table = model.reader.read(names[0], model.device)
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
