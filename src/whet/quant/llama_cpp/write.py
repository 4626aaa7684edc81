"""A recipe written by llama.cpp: a GGUF file in a folder with the target's other files."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Final

from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError, QuantizationError
from whet.core.llama_cpp import GGUF_NAME
from whet.core.records.model import ModelFacts
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.staging import require_space, staged
from whet.core.store import translate_disk_errors
from whet.core.units import NS_PER_S
from whet.quant.checkpoint_record import CacheKey, copy_beside, write_record
from whet.quant.llama_cpp.convert import find_tools, run_tool, write_gguf

_SIXTEEN_BIT: Final = "16bit.gguf"
_FALLBACKS: Final = re.compile(r"(\d+) of (\d+) tensor\(s\) required fallback quantization")
_BUILD: Final = re.compile(r"build (?:= )?(\d+)(?:, commit | \()(\w+)\)")


def write_checkpoint(facts: ModelFacts, target: tuple[Path, CacheKey]) -> QuantizedCheckpoint:
    """Write the checkpoint of ``facts`` as GGUF into a new folder and quantize it.

    ``target`` is that folder and the recipe. Raises ``QuantizationError`` where a tool fails,
    ``UsageError`` without the tools or the package gguf, ``StorageError`` (disk).
    """
    out, key = target
    (converter, quantizer), started_ns = find_tools(), time.monotonic_ns()
    require_space(out, 3 * facts.weight_bytes, "the GGUF files")
    with staged(out) as stage:
        whole = stage.folder / _SIXTEEN_BIT
        with translate_disk_errors(stage.folder):
            write_gguf(Path(facts.path), whole, converter)
            file = stage.folder / GGUF_NAME
            printed = run_tool([str(quantizer), str(whole), str(file), key.recipe.scheme], file)
            whole.unlink()
            copy_beside(Path(facts.path), stage.folder)
            shutil.copyfile(Path(facts.path) / "config.json", stage.folder / "config.json")
        written = _verified(stage.folder, facts, key)
        build = _BUILD.search(printed)
        done = QuantizedCheckpoint(
            path=str(out.resolve()),
            method=key.recipe.method,
            scheme=key.recipe.scheme,
            group_size=None,
            source_weights_sha256=facts.weights_sha256,
            weights_sha256=written.weights_sha256,
            weight_bytes=written.weight_bytes,
            bits_per_weight=written.stored.bits_per_weight,
            calibration=None,
            units=(),
            seconds=(time.monotonic_ns() - started_ns) / NS_PER_S,
            peak_memory_bytes=None,
            device="cpu",
            warnings=_warnings(printed, key.recipe.scheme),
            writer="llama.cpp" if build is None else f"llama.cpp b{build[1]} ({build[2]})",
        )
        write_record(stage.folder, key, done)
        stage.keep()
    return done


def _warnings(printed: str, scheme: str) -> tuple[str, ...]:
    """What llama-quantize stored otherwise than the scheme says."""
    match = _FALLBACKS.search(printed)
    if match is None:
        return ()
    return (
        f"{match[1]} of {match[2]} tensors are stored in more bits than {scheme} has: their rows "
        "are not a multiple of 256, which its blocks need",
    )


def _verified(folder: Path, source: ModelFacts, key: CacheKey) -> ModelFacts:
    """The facts of what was written; ``QuantizationError`` where it is not the recipe's."""
    try:
        written = read_facts(folder)
    except CheckpointError as error:
        raise QuantizationError(f"llama.cpp wrote what it cannot serve: {error}") from error
    if written.stored.scheme != key.recipe.scheme or written.parameters != source.parameters:
        raise QuantizationError(
            f"llama-quantize stored {written.parameters:,} parameters as {written.stored.scheme}, "
            f"and the recipe is {source.parameters:,} as {key.recipe.scheme}",
            fix="quantize again",
        )
    return written
