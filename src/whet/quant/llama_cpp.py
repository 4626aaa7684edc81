"""GGUF files of a 16-bit checkpoint, by llama.cpp's own converter and quantizer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whet.checkpoint import read_facts
from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.gguf_file import import_gguf
from whet.core.errors import CheckpointError, QuantizationError
from whet.core.llama_cpp import GGUF_NAME, find_program
from whet.core.records.model import ModelFacts
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.staging import require_space, staged
from whet.core.store import translate_disk_errors
from whet.core.units import NS_PER_S
from whet.quant.checkpoint_record import CacheKey, copy_beside, describe, write_record

_SMOLLM: Final = """
import runpy, sys
from pathlib import Path
script = str(Path(sys.argv.pop(1)).resolve())
sys.argv[0] = script
sys.path.insert(0, str(Path(script).parent))
from conversion.base import TextModel
by_hash = TextModel.get_vocab_base_pre
def name(model, tokenizer):
    try:
        return by_hash(model, tokenizer)
    except NotImplementedError:
        return "smollm"
TextModel.get_vocab_base_pre = name
runpy.run_path(script, run_name="__main__")
"""
"""Runs the converter, and names the way to split text where it does not know the tokenizer's hash.

The hash is of the token ids of one text, so that the converter refuses the demo pair's vocabulary.
A server's ``/tokenize`` is compared with the model's own tokenizer in any case.
"""
_NAME_CODE: Final = ("config.json", "tokenizer_config.json")
_SHOWN: Final = 300
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
        done = describe(
            out,
            key,
            written,
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


def find_tools() -> tuple[Path, Path]:
    """Return llama.cpp's converter and quantizer.

    ``UsageError`` where one of them, or the package gguf, is missing.
    """
    import_gguf()
    return find_program("convert_hf_to_gguf.py"), find_program("llama-quantize")


def write_gguf(folder: Path, out: Path, converter: Path) -> None:
    """Write the checkpoint in ``folder`` to the file ``out``, matrices in the dtype they have.

    Raises ``QuantizationError`` where the converter fails, and for a checkpoint with code of its
    own, which the converter would run.
    """
    if any("auto_map" in read_json_if_any(folder / name) for name in _NAME_CODE):
        raise QuantizationError(
            f"{folder} names code of its own (auto_map), which llama.cpp's converter would run",
            fix="remove auto_map from its config.json and tokenizer_config.json, or leave GGUF out",
        )
    hook = ["-c", _SMOLLM] if _splits_digits(folder) else []
    run_tool([sys.executable, *hook, str(converter), str(folder), "--outfile", str(out)], out)


def _splits_digits(folder: Path) -> bool:
    """Return whether text is split as llama.cpp's ``smollm`` does: digits, then GPT-2's words."""
    tokenizer = read_json_if_any(folder / "tokenizer.json")
    steps = (tokenizer.get("pre_tokenizer") or {}).get("pretokenizers") or []
    kinds = [(step.get("type"), step.get("individual_digits")) for step in steps]
    return kinds == [("Digits", True), ("ByteLevel", None)] and not tokenizer.get("normalizer")


def run_tool(command: Sequence[str], out: Path) -> str:
    """Return what a tool of llama.cpp prints while it writes ``out``.

    ``QuantizationError`` with its last line where it fails.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0 or not out.is_file():
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        reason = lines[-1][:_SHOWN] if lines else f"it ended with code {done.returncode}"
        shown = " ".join(word for word in command if word not in ("-c", _SMOLLM))
        raise QuantizationError(f"llama.cpp failed: {reason}", fix=f"check it: {shown}")
    return done.stdout
