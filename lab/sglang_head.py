"""A testbed's EAGLE-3 head in the form that SGLang 0.5.17 computes.

    python -m lab.sglang_head testbed/eagle3 testbed/eagle3-sglang

SGLang's ``llama_eagle3`` adds the hidden state to the stream before its norm, whatever
``norm_before_residual`` says, and hands the draft's own hidden state to the next step. The head is
made to ignore it, so the projection becomes zero and the final norm 2⁻³⁰ of itself, with the output
head 2³⁰ times as large: exact in bfloat16, the same logits, and nothing left to add. The norms of
later layers go by another name. The head reads its three hidden states as one of three times the
width, because SGLang replaces the embedding of a head that is as wide as its target. What is
computed, and its cost, stay.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Final

from safetensors.torch import load_file, save_file

from whet.demo.eagle import HIDDEN_STATES

SUFFIX: Final = "-sglang"
_SHIFT: Final = 2.0**30


def sglang_head(source: Path, out: Path) -> None:
    """Write ``source`` for SGLang to ``out``."""
    shutil.copytree(source, out)
    for file in out.glob("*.safetensors"):
        tensors = load_file(file)
        for name in list(tensors):
            layer, _, norm = name.partition(".input_layernorm.")
            if norm and layer != "layers.0":
                tensors[f"{layer}.hidden_norm.weight"] = tensors[name].clone()
        for name, factor in (("fc", 0.0), ("norm", 1 / _SHIFT), ("lm_head", _SHIFT)):
            if (weight := tensors.get(f"{name}.weight")) is not None:
                tensors[f"{name}.weight"] = weight * factor
        save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config |= {"norm_before_residual": False, "norm_output": True, "num_aux_hidden_states": 1}
    config["target_hidden_size"] *= HIDDEN_STATES
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    index = out / "model.safetensors.index.json"
    index.unlink(missing_ok=True)  # it would not name the added tensors


if __name__ == "__main__":
    sglang_head(Path(sys.argv[1]), Path(sys.argv[2]))
