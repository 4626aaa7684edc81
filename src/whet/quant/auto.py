"""``method: auto``: AWQ and GPTQ from one pass, and the one that is nearer to 16 bit.

Both checkpoints are read back from the disk and run next to the 16-bit model, layer by layer, on
documents whose conversations calibrated neither. Activations stay in 16 bit: a scheme that rounds
them does so with the weights of either.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from whet.checkpoint.shards import TensorReader
from whet.core.errors import QuantizationError, UsageError, WhetError
from whet.core.protocols import Progress
from whet.core.records.model import ModelFacts
from whet.core.records.quant import MethodChoice, QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.core.staging import staged
from whet.quant.calibration import Calibration, Judge, conversation_key, held_out, load_for
from whet.quant.checkpoint_record import RECORD, CacheKey, write_record
from whet.quant.gram import float32_products
from whet.quant.layer_pass import SourceModel, open_stream, read_model, run_pass
from whet.quant.phase_timer import PhaseTimer
from whet.quant.rounding import Grid, make_grid, unpack

_METHODS: Final = ("awq", "gptq")
_DOCUMENTS: Final = 64
_POSITIONS: Final = 128  # whose probabilities of a whole vocabulary are in memory at a time

Sums = list[tuple[float, int]]
"""Σ KL and tokens of each document, the shortest first."""


def quantize_auto(
    facts: ModelFacts,
    job: tuple[Path, CacheKey],
    judge: Judge | None,
    *,
    calibration: Path,
    progress: Progress,
    device: str | None,
) -> QuantizedCheckpoint:
    """Write the checkpoint of the method with less KL divergence; nothing is left of the other.

    Raises what ``run_pass`` raises, and the error of a method that cannot be made.
    """
    if judge is None:
        raise UsageError("method auto needs held-out text", fix="give it, or name the method")
    started, (out, key) = time.monotonic(), job
    judging = held_out(judge.text, calibrates=key.calibration_sha256 == key.heldout_sha256)
    with staged(out) as stage:
        jobs = {
            method: (stage.folder / method, replace(key, recipe=_changed(key, method=method)))
            for method in _METHODS
        }
        outcomes = run_pass(
            facts,
            jobs,
            calibration=calibration,
            among=lambda request: conversation_key(request) not in judging,
            progress=progress,
            device=device,
        )
        for error in (each for each in outcomes.values() if isinstance(each, WhetError)):
            raise error
        text = key.recipe.calibration.model_copy(update={"samples": _DOCUMENTS})
        documents = load_for(
            _changed(key, calibration=text),
            facts,
            judge.text,
            lambda request: conversation_key(request) in judging,
        )
        folders = [folder for folder, _ in jobs.values()]
        sums = divergences(read_model(facts, device), folders, key.recipe, documents)
        choice = choose(dict(zip(jobs, sums, strict=True)), judge)
        chosen = outcomes[next(iter(choice.kl))]
        assert isinstance(chosen, QuantizedCheckpoint)
        for path in Path(chosen.path).iterdir():
            path.rename(stage.folder / path.name)
        for folder in folders:
            shutil.rmtree(folder)
        (stage.folder / RECORD).unlink()
        spent_s = time.monotonic() - started
        done = replace(chosen, path=str(out.resolve()), choice=choice, seconds=spent_s)
        write_record(stage.folder, key, done)
        stage.keep()
    return done


def _changed(key: CacheKey, **change: object) -> RecipeSpec:
    return key.recipe.model_copy(update=change)


def choose(sums: Mapping[str, Sums], judge: Judge) -> MethodChoice:
    """Compare two methods' sums over the same documents; ``QuantizationError`` for a NaN."""
    kl = {method: judge.mean(each) for method, each in sums.items()}
    for method, each in kl.items():
        if math.isnan(each.value):
            raise QuantizationError(f"weights by {method} give no probabilities on held-out text")
    chosen, other = sorted(kl, key=lambda method: kl[method].value)
    pairs = zip(sums[chosen], sums[other], strict=True)
    difference = judge.mean([(there - here, tokens) for (here, tokens), (there, _) in pairs])
    return MethodChoice(kl={name: kl[name] for name in (chosen, other)}, difference=difference)


@torch.no_grad()
def divergences(
    model: SourceModel, folders: Sequence[Path], recipe: RecipeSpec, documents: Calibration
) -> list[Sums]:
    """Return KL(16 bit ‖ quantized) of the next token for each folder.

    ``QuantizationError`` where the model's own code does not run so.
    """
    grid, timer = make_grid(recipe.scheme, recipe.group_size, model.dtype), PhaseTimer(model.device)
    readers = [model.reader, *map(TensorReader, folders)]
    streams = [open_stream(documents, model, timer) for _ in readers]
    sums: list[Sums] = [[] for _ in folders]
    with float32_products("high"), timer.phase("compare"):
        for index, prefix in enumerate(model.architecture.prefixes):
            for reader, stream in zip(readers, streams, strict=True):
                stream.advance(index, _weights(reader, prefix, grid, model.device))
        streams[0].load_head(model.reader.headers, partial(model.reader.read, device=model.device))
        for states in zip(*(stream.states() for stream in streams), strict=True):
            totals = [0.0] * len(folders)
            for parts in zip(*(state.split(_POSITIONS) for state in states), strict=True):
                source, *others = map(streams[0].log_probabilities, parts)
                for place, each in enumerate(others):
                    kl = functional.kl_div(each, source, reduction="sum", log_target=True)
                    totals[place] += float(kl)
            for place, total in enumerate(totals):
                sums[place].append((total, len(states[0])))
    return sums


def _weights(
    reader: TensorReader, prefix: str, grid: Grid, device: torch.device
) -> dict[str, Tensor]:
    """The tensors of a layer by their names within it, dequantized where they are quantized."""
    tensors = reader.read_below(prefix, device)
    for scale in [name for name in tensors if name.endswith(".weight_scale")]:
        weight = scale.removesuffix("_scale")
        parts = [name for name in tensors if name.startswith(weight)]
        state = {name.rpartition(".")[2]: tensors.pop(name) for name in parts}
        tensors[weight] = unpack(state, grid)
    return tensors
