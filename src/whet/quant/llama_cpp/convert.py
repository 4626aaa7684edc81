"""A 16-bit checkpoint as a 16-bit GGUF file, by llama.cpp's own converter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.gguf_file import import_gguf
from whet.core.errors import QuantizationError
from whet.core.llama_cpp import find_program

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
