"""One base with 1, 10 and 100 LoRA adapters beside a server for each.

    python -m benchmarks.lora OUT [--target FOLDER] [--sizes 1 16] [--trials 2] [--price 1.0]

The adapters have rank 8 on every projection and change nothing, so that answers stay the base's: an
engine treats them as it would treat any others. Without ``--target`` the demo pair serves.
``whet run`` measures the base alone, then with all adapters in turn, with skewed use (Zipf, 1), and
with room for an eighth of them at once; every claim is judged. A server with adapters is then asked
to load others while it runs: seconds to load, and to the first token of the first request and of
later ones.

Writes ``lora.csv`` (a row for each variant and load), ``loading.csv`` (a row for each adapter) and
``servers.csv``: by the demand of all adapters together, the servers that take it on one base and
with a base for each adapter.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

from whet.checkpoint.headers import read_headers
from whet.core.run import Run
from whet.demo import pair_paths
from whet.engines import get_engine
from whet.engines.probe import request

COUNTS: Final = (1, 10, 100)
_LOADED: Final = 20
_REPEATS: Final = 3
_RANK: Final = 8
_PROMPT: Final = "Where is my parcel?"


def main() -> None:
    """Measure, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", type=Path, default=pair_paths()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--price", type=float, default=1.0, help="US$ an hour of one server")
    parser.add_argument("--args", type=json.loads, default={}, help="the engine's, as JSON")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    for count in COUNTS:
        write_adapters(out / "adapters" / str(count), count, options.target)
    spec = out / "whet.yaml"
    spec.write_text(yaml.safe_dump(spec_of(options, out), sort_keys=False))
    words = ["run", str(spec), "--output-dir", str(out / "runs"), "--resume"]
    done = subprocess.run([sys.executable, "-m", "whet", *words], check=False)
    print(f"whet run ended with {done.returncode}")  # 0, or no variant is recommended
    run = Run.read(out / "runs" / "lora")
    write(out / "lora.csv", list(cell_rows(run)))
    write(out / "servers.csv", list(server_rows(run, max(options.sizes), options.price)))
    write(out / "loading.csv", list(loading_rows(run, out)))


def write_adapters(folder: Path, count: int, target: Path) -> None:
    """``count`` adapters of every projection of ``target``; B is 0, so answers are its own."""
    first = folder / "a000"
    if not first.exists():
        first.mkdir(parents=True)
        tensors = dict(_matrices(target))
        modules = sorted({name.split(".")[-3] for name in tensors})
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": _RANK, "lora_alpha": _RANK}
        config |= {"base_model_name_or_path": "target", "bias": "none", "target_modules": modules}
        (first / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, first / "adapter_model.safetensors")
    for number in range(1, count):
        if not (place := folder / f"a{number:03d}").exists():
            shutil.copytree(first, place, copy_function=os.link)


def _matrices(target: Path) -> Iterator[tuple[str, NDArray[np.float16]]]:
    random = np.random.default_rng(0)
    for name, header in read_headers(target).items():
        if name.endswith("_proj.weight") and len(header.shape) == 2:
            rows, columns = header.shape
            module = f"base_model.model.{name.removesuffix('.weight')}"
            values = 0.01 * random.standard_normal((_RANK, columns))
            yield f"{module}.lora_A.weight", values.astype(np.float16)
            yield f"{module}.lora_B.weight", np.zeros((rows, _RANK), np.float16)


def spec_of(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The base, and each number of adapters."""
    adapters = {count: str(out / "adapters" / str(count)) for count in COUNTS}
    most = max(COUNTS)
    variants: dict[str, Any] = {"base": {"prefix_cache": True}}
    for count, folder in adapters.items():
        variants[f"lora{count}"] = {"prefix_cache": True, "loras": folder}
    variants[f"lora{most}+skew"] = {"prefix_cache": True, "loras": adapters[most], "lora_skew": 1.0}
    variants[f"lora{most}+cold"] = {
        "prefix_cache": True, "loras": adapters[most], "max_loras": math.ceil(most / 8),
    }  # fmt: skip
    return {
        "name": "lora",
        "model": {"target": str(options.target.resolve())},
        "hardware": {"tier": "one server", "price_usd_per_hour": options.price},
        "engine": {"args": {"max_model_len": 2048, **options.args}},
        "recipes": {},
        "workload": {"max_output_tokens": 64},
        "load": {
            "batch_sizes": options.sizes,
            "trials": options.trials,
            "min_requests": 200,
            "confirm": False,
        },
        "quality": {"max_documents": 8, "max_tasks": 8, "max_tokens": 64},
        "objective": {"ttft_ms": [5000], "recommend_ttft_ms": 5000},
        "baseline": "base",
        "variants": variants,
    }  # fmt: skip


def cell_rows(run: Run) -> Iterator[dict[str, Any]]:
    """Figures of every cell, and the verdict on its adapters."""
    for cell in run.cells:
        verdicts = {
            each.claim.kind: each.outcome
            for each in run.verdicts
            if each.variant == cell.variant and each.batch_size in (None, cell.batch_size)
        }
        yield {
            "variant": cell.variant,
            "in_flight": cell.batch_size,
            "adapters": len(run.engines[cell.variant].variant.loras),
            **{
                name: "" if (figure := getattr(cell, name)) is None else f"{figure.value:.4g}"
                for name in ("rps_mean", "tps_mean", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms")
            },
            "memory_gb": cell.memory_gb,
            "ready_s": round(run.starts[cell.variant].ready_s, 1),
            "adapters_loaded": verdicts.get("lora", ""),
            "adapters_ran": verdicts.get("lora_requests", ""),
        }


def server_rows(run: Run, size: int, price: float) -> Iterator[dict[str, Any]]:
    """Servers and US$ an hour by demand, as a multiple of what one base server takes."""
    base = _rate(run, "base", size)
    for count in COUNTS:
        shared = _rate(run, f"lora{count}", size)
        for share in (0.1, 1.0, 10.0, 100.0):
            demand = share * base
            one = math.ceil(demand / shared)
            own = count * math.ceil(demand / count / base)
            yield {
                "adapters": count,
                "demand_rps": f"{demand:.3g}",
                "servers_shared": one,
                "servers_apart": own,
                "usd_per_hour_shared": one * price,
                "usd_per_hour_apart": own * price,
            }


def _rate(run: Run, variant: str, size: int) -> float:
    cell = run.cell(variant, size)
    if cell is None or cell.rps_mean is None:
        raise SystemExit(f"{variant} has no figures at {size} in flight")
    return cell.rps_mean.value


def loading_rows(run: Run, out: Path) -> Iterator[dict[str, Any]]:
    """Adapters that a running server is asked to load: seconds of it, and first tokens after."""
    resolved = run.engines["lora1"]
    resolved = replace(
        resolved,
        argv=(*resolved.argv, "--max-cpu-loras", str(2 * _LOADED)),
        env=(*resolved.env, ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")),
    )
    folders = sorted((out / "adapters" / str(max(COUNTS))).iterdir())
    with get_engine(resolved.engine).serve(resolved, log=out / "loading.log") as server:
        for folder in folders[1 : _LOADED + 1]:
            load = {"lora_name": folder.name, "lora_path": str(folder)}
            load_s = _seconds(server.base_url, "/v1/load_lora_adapter", load)
            ask = {"model": folder.name, "prompt": _PROMPT, "max_tokens": 1}
            first_s, *later_s = (
                _seconds(server.base_url, "/v1/completions", ask) for _ in range(1 + _REPEATS)
            )
            yield {
                "adapter": folder.name,
                "load_ms": f"{1e3 * load_s:.1f}",
                "first_token_ms": f"{1e3 * first_s:.1f}",
                "later_token_ms": f"{1e3 * statistics.median(later_s):.1f}",
            }


def _seconds(base_url: str, path: str, body: dict[str, Any]) -> float:
    """How long a request takes; it has to succeed."""
    began = time.monotonic()
    status, text = request(base_url, path, body=body, timeout_s=60)
    if status != HTTPStatus.OK:
        raise SystemExit(f"{path} answered {status}: {text}")
    return time.monotonic() - began


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A CSV of rows alike."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
