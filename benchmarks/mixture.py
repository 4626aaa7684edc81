"""AWQ of a mixture of experts of the 30B-A3B shape on one GPU: time a layer, and memory.

    python -m benchmarks.mixture OUT [--layers 8] [--samples 512]

The weights are random and have the true shape (128 experts, 8 a token); ``layers`` of 48 fit the
disk. Writes ``mixture.csv`` with the phases that ``whet quantize`` records.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

import torch
from tests.zoo.models import published_config

import whet.demo
from whet.core.spec import RecipeSpec
from whet.data import write_inputs
from whet.quant import quantize

_MODEL: Final = "Qwen3-30B-A3B"
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write_source(folder: Path, layers: int) -> None:
    """The published shape with fewer layers, random weights in bf16."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**published_config(_MODEL), "num_hidden_layers": layers}
    kind = values.pop("model_type")
    config = AutoConfig.for_model(kind, **values)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.bfloat16
        )
    model.save_pretrained(folder)
    source = Path(whet.demo.__file__).parent / "pair" / "target"
    for name in _TOKENIZER:
        shutil.copyfile(source / name, folder / name)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--methods", nargs="+", default=["awq"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_source(options.out / "source", options.layers)
    torch.cuda.empty_cache()
    write_inputs(options.out / "inputs")
    rows = []
    for method in options.methods:
        recipe = RecipeSpec.model_validate(
            {"method": method, "calibration": {"samples": options.samples}}
        )
        start = time.monotonic()
        done = quantize(
            options.out / "source",
            options.out / method,
            recipe,
            calibration=options.out / "inputs" / "calibration.jsonl",
            progress=lambda step, total: print(step, total, time.monotonic(), flush=True),
        )
        row = {
            "model": _MODEL,
            "layers": options.layers,
            "method": method,
            "device": done.device,
            "seconds": time.monotonic() - start,
            "seconds_a_layer": sum(phase.seconds for phase in done.phases if phase.name != "verify")
            / options.layers,
            "peak_gib": (done.peak_memory_bytes or 0) / 2**30,
            "bits_per_weight": done.bits_per_weight,
            "phases": json.dumps({phase.name: round(phase.seconds, 1) for phase in done.phases}),
            "warnings": " ".join(done.warnings),
        }
        rows.append(row)
        print(row, flush=True)
        with (options.out / "mixture.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        shutil.rmtree(options.out / method)


if __name__ == "__main__":
    main()
