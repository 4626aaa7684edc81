"""AWQ of a mixture of experts of the 30B-A3B shape on one GPU: time a layer, and memory.

    python -m benchmarks.mixture OUT [--layers 8] [--samples 512] [--peer-python PATH]

The weights are random and have the true shape (128 experts, 8 a token); ``layers`` of 48 fit the
disk. With ``--peer-python`` llm-compressor quantizes the same checkpoint on the same token ids
after us. Writes ``mixture.csv``.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from tests.zoo.models import published_config

import whet.demo
from benchmarks.jobs import Job, JobError, peer_tool, run_job, whet_tool
from whet.core.provenance import find_device
from whet.core.units import GIB
from whet.data import write_inputs
from whet.quant import load_calibration

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
    parser.add_argument("--peer-python", metavar="PATH", help="of llm-compressor's environment")
    parser.add_argument("--peer-path", metavar="PYTHONPATH")
    parser.add_argument("--peer-batch", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800, help="seconds for each tool")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    job = write_job(out, options.layers, options.samples)
    tools = [whet_tool()]
    if options.peer_python:
        tools.append(peer_tool(options.peer_python, options.peer_path))
        job = replace(job, batch_size=options.peer_batch)
    rows: list[dict[str, object]] = []
    for tool in tools:
        row: dict[str, object] = {"tool": tool.name, "model": _MODEL, "layers": options.layers}
        try:
            spent = run_job(
                tool, replace(job, out=str(out / "made")), out / tool.name, limit_s=options.limit
            )
        except JobError as error:
            row |= {"problem": str(error)}
        else:
            row |= {
                "device": find_device().name,
                "versions": json.dumps(dict(spent.versions)),
                "tokens": spent.tokens,
                "seconds": round(spent.total_s, 1),
                "seconds_a_layer": round((spent.work_s + spent.save_s) / options.layers, 2),
                "device_gib": round(spent.peak_bytes / GIB, 1),
                "phases": json.dumps({name: round(value, 1) for name, value in spent.phases}),
            }
        rows.append(row)
        print(row, flush=True)
        with (out / "mixture.csv").open("w", newline="") as file:
            names = dict.fromkeys(name for each in rows for name in each)
            writer = csv.DictWriter(file, list(names), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        shutil.rmtree(out / "made", ignore_errors=True)


def write_job(out: Path, layers: int, samples: int) -> Job:
    """The source, the calibration text and the same samples as token ids."""
    source, ids = out / "source", out / "ids.json"
    write_source(source, layers)
    torch.cuda.empty_cache()
    write_inputs(out / "inputs")
    text = out / "inputs" / "calibration.jsonl"
    drawn = load_calibration(text, source, samples=samples, max_tokens=512, seed=0)
    ids.write_text(json.dumps(drawn.ids), encoding="utf-8")
    return Job(
        source=str(source),
        out="",
        method="awq",
        scheme="W4A16",
        group_size=128,
        device="cuda",
        calibration=str(text),
        ids=str(ids),
        samples=samples,
        max_tokens=512,
        seed=0,
    )


if __name__ == "__main__":
    main()
