"""Every lever on the demo pair: was it really pulled? Makes results/levers-*/levers.csv.

    python -m benchmarks.levers run OUT              # goes on where a stopped one left off
    python -m benchmarks.levers run OUT --only fp16,cache
    python -m benchmarks.levers table OUT/levers-cpu … --csv levers.csv

One short trial a variant: it is made for verdicts, not for speed. Variants that the machine cannot
run are in it on purpose: preflight says why.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lab.adapters import adapter_paths

from whet.cli.main import main as whet
from whet.core.provenance import cpu_dtype
from whet.core.records import CellSummary, ResolvedEngine, Verdict
from whet.core.run import Run
from whet.core.store import write_atomic
from whet.core.units import GIB
from whet.demo import pair_paths
from whet.flow.run.results import summarize_run
from whet.flow.run.side_effects import lever_costs

_SHARED: Final = {"max_model_len": 2048, "max_num_seqs": 64}
_CPU: Final = {"enforce_eager": True, "block_size": 32}
_GPU: Final = {"enforce_eager": True, "kv_cache_memory_bytes": 4 * GIB}
"""A fixed KV pool: several such runs may share one GPU, for verdicts and not for speed."""
_FAST: Final = {"samples": 64, "max_tokens": 128}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A lever, the variant that pulls it and the kinds of claims that are about it."""

    lever: str
    setting: str
    variant: dict[str, Any]
    kinds: tuple[str, ...]


def cases(*, gpu: bool) -> dict[str, Case]:
    """Every variant by name; the baseline ``fp16`` first."""
    return {**_weights(), **_speculation(gpu=gpu), **_batching(), **_rest(gpu=gpu)}


def _case(lever: str, setting: str, kinds: str, **variant: Any) -> Case:
    return Case(lever=lever, setting=setting, variant=variant, kinds=tuple(kinds.split()))


def _weights() -> dict[str, Case]:
    kinds = "weights"
    all_cases = {"fp16": _case("weights", "16 bit, plain server", "weights settings execution")}
    for name, (_, words) in RECIPES.items():
        all_cases[name] = _case("weights", words, kinds, weights=name)
    for method in ("fp8", "bitsandbytes", "gguf"):
        all_cases[f"load-{method}"] = _case(
            "weights", f"{method} at load", kinds, args={"quantization": method}
        )
    all_cases["kv-fp8"] = _case("KV cache", "FP8", "kv_cache", args={"kv_cache_dtype": "fp8"})
    return all_cases


RECIPES: Final = {
    "awq": ({"method": "awq"}, "W4A16, AWQ"),
    "gptq": ({"method": "gptq"}, "W4A16, GPTQ"),
    "asym": ({"scheme": "W4A16_ASYM"}, "W4A16 asymmetric"),
    "mixed": ({"mixed": {"bits_per_weight": 5.0}}, "mixed W4A16 + 16 bit"),
    "w8a16": ({"scheme": "W8A16"}, "W8A16"),
    "w8a8": ({"scheme": "W8A8"}, "W8A8-INT8, SmoothQuant"),
    "fp8-dynamic": ({"scheme": "FP8_DYNAMIC"}, "FP8, dynamic"),
    "fp8-kv": ({"scheme": "FP8", "kv_cache": "fp8"}, "FP8, static, with FP8 KV"),
}


def _speculation(*, gpu: bool) -> dict[str, Case]:
    kinds = "speculation settings"

    def one(setting: str, **spec: Any) -> Case:
        return _case("speculation", setting, kinds, speculation=spec)

    group = {
        "draft-k2": one("draft model, K = 2", num_tokens=2),
        "draft-k4": one("draft model, K = 4", num_tokens=4),
        "draft-k6": one("draft model, K = 6", num_tokens=6),
        "self": one("the target's own W4A16 copy drafts, K = 4", draft="awq"),
        "ngram": one("n-gram (prompt lookup), K = 4", method="ngram"),
        "ngram-gpu": one("n-gram on the GPU, K = 4", method="ngram_gpu"),
        "suffix": one("suffix, K = 24", method="suffix", num_tokens=24),
        "mtp": one("MTP, K = 1", method="mtp", num_tokens=1),
        "draft-tp": one("draft tensor-parallel size 1", options={"draft_tensor_parallel_size": 1}),
        "synthetic": one(
            "draft model, K = 4, synthetic acceptance length 3.4",
            options={
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": 3.4,
            },
        ),
    }
    if not gpu:
        del group["draft-k6"]
    return group


def _batching() -> dict[str, Case]:
    def one(setting: str, **args: Any) -> Case:
        return _case("batching", setting, "settings", args=args)

    return {
        "cache": _case("prefix cache", "on", "prefix_cache", prefix_cache=True),
        "static": _case("batching", "static batches", "batching", batching="static"),
        "unchunked": one(
            "chunked prefill off", enable_chunked_prefill=False, max_num_batched_tokens=2048
        ),
        "tokens-512": one("max_num_batched_tokens 512", max_num_batched_tokens=512),
        "seqs-2": one("max_num_seqs 2", max_num_seqs=2),
        "block-64": one("block size 64", block_size=64),
        "length-1536": one("max_model_len 1536", max_model_len=1536),
        **{
            preset: _case("preset", preset, "settings", preset=preset)
            for preset in ("chat", "batch", "hybrid")
        },
    }


def _rest(*, gpu: bool) -> dict[str, Case]:
    adapters = {name: str(path) for name, path in adapter_paths().items()}
    backends = ("FLASH_ATTN", "TRITON_ATTN", "FLASHINFER") if gpu else ("CPU_ATTN", "FLASH_ATTN")
    attention = {
        f"attention-{name.lower().replace('_', '-')}": _case(
            "attention", name, "attention", args={"attention_backend": name}
        )
        for name in backends
    }
    parallel = {
        "tp-2": {"tensor_parallel_size": 2},
        "pp-2": {"pipeline_parallel_size": 2},
        "dp-2": {"data_parallel_size": 2},
        "ep": {"enable_expert_parallel": True},
    }
    return {
        "lora-hot": _case("multi-LoRA", "2 adapters, both fit", "lora lora_requests",
                          loras=adapters),
        "lora-cold": _case("multi-LoRA", "2 adapters, one fits", "lora lora_requests",
                           loras=adapters, max_loras=1),
        **attention,
        "eager": _case("execution", "eager", "execution", args={"enforce_eager": True}),
        "compiled": _case("execution", "compiled, CUDA graphs on a GPU", "execution",
                          args={"enforce_eager": False}),
        "async": _case("scheduling", "asynchronous", "async_scheduling",
                       args={"async_scheduling": True}),
        "sync": _case("scheduling", "synchronous", "async_scheduling",
                      args={"async_scheduling": False}),
        **{
            name: _case("parallelism", " ".join(f"{k}={v}" for k, v in args.items()),
                        "parallelism", args=args)
            for name, args in parallel.items()
        },
    }  # fmt: skip


def spec(*, gpu: bool, only: Sequence[str] | None) -> dict[str, Any]:
    """The run as a spec; ``only`` names variants beside the baseline."""
    target, draft = pair_paths()
    args = {**_SHARED, **(_GPU if gpu else {**_CPU, "dtype": cpu_dtype()})}
    known = cases(gpu=gpu)
    names = [name for name in known if only is None or name in only or name == "fp16"]
    return {
        "name": "levers-gpu" if gpu else "levers-cpu",
        "model": {"target": str(target), "draft": str(draft)},
        "hardware": {"price_usd_per_hour": 1.0, "price_source": "a stand-in; nothing is decided"},
        "engine": {"args": args, "env": {} if gpu else {"VLLM_CPU_KVCACHE_SPACE": "1"}},
        "recipes": {
            name: {**recipe, "calibration": _FAST} for name, (recipe, _) in RECIPES.items()
        },
        "workload": {
            "long_system_share": 0.15,
            "output_lengths": "ratio",
            "input_output_ratio": 8,
            "max_input_tokens": 1000,
            "max_output_tokens": 48,
        },
        "load": {
            "batch_sizes": [4],
            "trials": 1,
            "min_requests": 12,
            "requests_per_slot": 3,
            "warmup_requests": 8,
            "confirm": False,
        },
        "quality": {"max_documents": 60, "max_tasks": 8, "max_tokens": 256},
        "variants": {name: known[name].variant for name in names},
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One lever's line of the table."""

    lever: str
    setting: str
    verdict: str
    observed: str
    side_effects: str
    variant: str
    engine: str


def rows(run: Run, *, gpu: bool) -> Iterator[Row]:
    """Every variant of a run that was tried or refused, in the order of ``cases``."""
    summary = summarize_run(run)
    cells = {item.variant: item for item in summary.cells}
    side_effects: dict[str, list[str]] = {}
    for cost in lever_costs(run, summary.cells):
        side_effects.setdefault(cost.variant, []).append(cost.what)
    for name, case in cases(gpu=gpu).items():
        refused = run.store.reason("infeasible", name)
        verdict, words = _verdict(
            case,
            [item for item in summary.verdicts if item.variant == name],
            cells.get(name),
            refused,
        )
        if verdict:
            yield Row(
                lever=case.lever,
                setting=case.setting,
                verdict=verdict,
                observed=words,
                side_effects="; ".join(dict.fromkeys(side_effects.get(name, []))),
                variant=name,
                engine=_engine_words(run.engines.get(name)),
            )


def _verdict(
    case: Case, verdicts: Sequence[Verdict], cell: CellSummary | None, refused: str | None
) -> tuple[str, str]:
    if refused is not None:
        return "not available here", refused.removeprefix("not available here: ")
    if cell is not None and cell.status != "complete":
        return "failed", cell.failure or cell.status
    own = [item for item in verdicts if item.claim.kind in case.kinds]
    if not own:
        return "", ""
    order = ("proved", "unproved", "contradicted")
    worst = max(own, key=lambda item: order.index(item.outcome))
    observed = [item.observed for item in own if item.outcome == worst.outcome]
    return worst.outcome, "; ".join(observed)


def _engine_words(resolved: ResolvedEngine | None) -> str:
    return "" if resolved is None else f"{resolved.engine} {resolved.engine_version}"


def _csv(table_rows: Sequence[Row]) -> bytes:
    text = io.StringIO(newline="")
    made = csv.DictWriter(text, list(Row.__dataclass_fields__), lineterminator="\n")
    made.writeheader()
    made.writerows(asdict(row) for row in table_rows)
    return text.getvalue().encode()


def main() -> None:
    """Parse, then run the spec or print the table of finished runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    kinds = parser.add_subparsers(dest="what", required=True)
    run = kinds.add_parser("run")
    run.add_argument("out", type=Path)
    run.add_argument("--only")
    table = kinds.add_parser("table")
    table.add_argument("runs", type=Path, nargs="+")
    table.add_argument("--csv", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "run":
        options.out.mkdir(parents=True, exist_ok=True)
        path = options.out / "levers.yaml"
        only = options.only.split(",") if options.only else None
        path.write_text(json.dumps(spec(gpu=options.gpu, only=only)))  # JSON is YAML
        words = ["run", str(path), "-o", str(options.out), "--resume", "--skip-infeasible"]
        sys.argv = ["whet", *words]
        whet()
        return
    by_variant: dict[str, Row] = {}
    for folder in options.runs:
        by_variant |= {row.variant: row for row in rows(Run.read(folder), gpu=options.gpu)}
    ordered = [by_variant[name] for name in cases(gpu=options.gpu) if name in by_variant]
    write_atomic(options.csv, _csv(ordered))


if __name__ == "__main__":
    main()
