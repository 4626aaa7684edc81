"""GGUF files for tests, by llama.cpp's own converter and quantizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

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
"""Runs the converter, which knows tokenizers by a hash and refuses the demo pair's."""


def write_gguf(model: Path, folder: Path, scheme: str) -> Path:
    """Write ``model`` as a GGUF file of ``scheme`` beside its config.json and tokenizer."""
    quantizer = find_program("llama-quantize")
    converter = quantizer.with_name("convert_hf_to_gguf.py")
    folder.mkdir(parents=True)
    for file in model.glob("*.json"):
        if not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    whole, made = folder / "16bit.gguf", folder / f"{scheme}.gguf"
    command = [sys.executable, "-c", _SMOLLM, converter, model, "--outfile", whole]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run([quantizer, whole, made, scheme], check=True, capture_output=True)
    whole.unlink()
    return made
