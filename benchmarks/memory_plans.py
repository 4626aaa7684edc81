"""whet's memory plan against what vLLM says at its start, for published shapes.

    python -m benchmarks.memory_plans OUT [--models Llama-3.1-8B …] [--args KEY=VALUE …]

The shapes are those of ``tests/zoo``; vLLM makes up the weights (``load_format=dummy``), so nothing
is downloaded. One server after another: each profiles the memory that is free. Writes
``memory.csv``: bytes of weights and of the KV pool, KV tokens, and their ratios, plan to engine.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from tests.zoo.models import write_model

from whet.checkpoint import read_facts
from whet.core.errors import WhetError
from whet.core.provenance import find_device
from whet.core.spec import EngineSpec
from whet.core.units import GIB
from whet.flow.quantize.serve_check import Serving, resolve_serving
from whet.predict.memory import Demand, plan_memory

MODELS: Final = (
    *("Llama-3.1-8B", "Mistral-7B-v0.3", "Phi-4", "Gemma-2-9b", "Gemma-3-1b", "gpt-oss-20b"),
    *("DeepSeek-V2-Lite", "Qwen3-30B-A3B", "Granite-4.0-h-tiny", "Qwen2.5-7B"),
)
_LENGTH: Final = 8192
_PATTERNS: Final = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "pool_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_tokens": r"KV cache size: ([\d,]+)",
    "concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Plan and engine, in GiB and tokens; ``concurrency`` is of requests of 8,192 tokens."""

    model: str
    device: str
    engine: str
    planned_weights_gib: float
    weights_gib: float
    planned_pool_gib: float
    pool_gib: float
    planned_concurrency: float
    concurrency: float
    concurrency_given_pool: float
    problem: str = ""


def measure(model: str, work: Path, args: Mapping[str, Any]) -> Row:
    """Plan the model, start it with made-up weights, and read the engine's figures."""
    folder = write_model(model, work / model)
    facts, device = read_facts(folder), find_device()
    serving = Serving(name=model, path=folder, recipe=None, max_model_len=_LENGTH)
    spec = EngineSpec(args={"load_format": "dummy", "enforce_eager": False, **args})
    engine, resolved = resolve_serving(serving, spec)
    log, problem = work / f"{model}.log", ""
    try:
        with engine.serve(resolved, log=log):
            pass
    except WhetError as error:
        problem = str(error).splitlines()[0][:200]
    text = log.read_text(errors="replace")
    figures = {name: _number(pattern, text) for name, pattern in _PATTERNS.items()}
    plan = plan_memory(
        resolved.variant,
        target=facts,
        stored=facts,
        draft=None,
        device=device,
        demand=Demand(max_batch=1, tokens_per_request=_LENGTH),
    )
    pool = figures["pool_gib"]
    return Row(
        model=model,
        device=device.name,
        engine=f"vllm {resolved.engine_version}",
        planned_weights_gib=plan.weight_bytes / GIB,
        weights_gib=figures["weights_gib"],
        planned_pool_gib=plan.kv_pool_bytes / GIB,
        pool_gib=pool,
        planned_concurrency=plan.kv_pool_bytes / plan.kv_request_bytes,
        concurrency=figures["concurrency"],
        concurrency_given_pool=pool * GIB / plan.kv_request_bytes,
        problem=problem,
    )


def _number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    return float(match[1].replace(",", "")) if match else float("nan")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--args", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    work = options.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    args = {
        key: yaml.safe_load(value) for key, value in (each.split("=", 1) for each in options.args)
    }
    rows = []
    for model in options.models:
        rows.append(row := measure(model, work, args))
        print(row, flush=True)
        with (options.out / "memory.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(row)), lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(each) for each in rows)
        shutil.rmtree(work / model)


if __name__ == "__main__":
    main()
