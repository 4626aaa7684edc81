"""Layouts of several GPUs: checkpoints without weights to measure them, and what whet predicts.

    python -m benchmarks.layouts shapes WORK       # sparse checkpoints for lab/x?_*.yaml
    python -m benchmarks.layouts predict x8|x4|x2 [--peer aiconfigurator] [--name FILE.csv]
    python -m benchmarks.layouts measured OUT.csv RUN … [--peer aiconfigurator]

``shapes`` writes Llama-3-70B's and Qwen3-30B-A3B's sizes with the demo's tokenizer and vocabulary,
in 16 bits, FP8 and 4 bits. The files take no room: vLLM makes up the weights (``load_format:
dummy``). ``predict`` plans the variants of both specs at their loads into
``results/x8-predicted/predicted.csv``, beside AIConfigurator's figures where it has the form.
``measured`` puts the complete cells of runs beside what the same code says for the lengths that
they had. A run is a folder, or what ``lab.archive`` wrote.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

from lab.shapes import SHAPES
from lab.side_by_side import opened
from tests.checkpoint_factory import write_hollow_file, write_json

from benchmarks.accuracy import peer_answer
from whet.checkpoint.headers import read_file_headers
from whet.core.flags import plain_args
from whet.core.records import TrialRecord
from whet.core.run import Run
from whet.demo import pair_paths
from whet.flow.calibrate.observe import timed_requests
from whet.flow.plan.evaluate import Prediction, evaluate
from whet.flow.plan.options import PlanOptions
from whet.flow.plan.parallelism import Parallelism
from whet.flow.plan.plan import Plan as Planned
from whet.flow.plan.plan import make_plan
from whet.predict.hardware import known_name

RESULTS: Final = Path(__file__).parents[1] / "results"
TRAFFIC: Final = {
    **dict.fromkeys(("x4", "x8"), "prompt=739,output=185"),
    "x2": "prompt=1150,output=256",
}
"""By kind of host. The specs' prompts have 739 tokens on average, answers a quarter of that; those
for two were predicted before this was measured."""


class Plan(NamedTuple):
    """What is predicted for one kind of host: layouts, precisions and requests in flight."""

    gpus: str
    model: str
    layouts: str
    weights: str
    sizes: str


PLANS: Final[Mapping[str, tuple[Plan, ...]]] = {
    "x8": (
        Plan("8x H100 SXM", "70b", "tp4,tp8,tp2xdp4,tp4xdp2", "FP8_DYNAMIC,W4A16", "8,64,256"),
        Plan("8x H100 SXM", "30b-a3b", "tp8,tp8xep,dp8xep", "FP8_DYNAMIC", "8,64,512"),
    ),
    "x4": (
        Plan("4x H100 SXM", "70b", "tp4,tp2xdp2", "FP8_DYNAMIC,W4A16", "8,64,128"),
        Plan("4x H100 SXM", "30b-a3b", "tp4,tp4xep,dp4xep", "FP8_DYNAMIC", "8,64,192"),
    ),
    "x2": tuple(
        plan
        for gpu in ("H100 SXM", "H200")
        for plan in (
            Plan(gpu, "70b", "1", "W4A16", "8,64"),
            Plan(f"2x {gpu}", "70b", "tp2,dp2", "W4A16", "8,64"),
            Plan(f"2x {gpu}", "70b", "tp2", "FP8_DYNAMIC", "8,64"),
            Plan(gpu, "30b-a3b", "1", "FP8_DYNAMIC", "8,64,256"),
            Plan(f"2x {gpu}", "30b-a3b", "tp2,tp2xep,dp2,dp2xep", "FP8_DYNAMIC", "8,64,256"),
            Plan(f"2x {gpu}", "30b-a3b", "tp2,tp2xep,dp2,dp2xep", "16bit", "8,64,256"),
        )
    ),
}
_SYSTEMS: Final = {"H100 SXM": "h100_sxm", "H200": "h200_sxm"}
_VOCAB: Final = 4096
_GROUP: Final = 128
_MOE: Final = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": _VOCAB,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_FLOAT8: Final = {"num_bits": 8, "type": "float", "symmetric": True}
_INT4: Final = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
_FORMS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "fp8": (
        "float-quantized",
        {
            "weights": {**_FLOAT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**_FLOAT8, "strategy": "token", "dynamic": True},
        },
    ),
    "w4": ("pack-quantized", {"weights": {**_INT4, "group_size": _GROUP}}),
}
"""compressed-tensors' format and group of each form."""


def write_shapes(work: Path) -> None:
    """``WORK/70b``, ``WORK/30b-a3b`` and their quantized forms, each with the demo's tokenizer.

    They are marked as without weights, so that nothing hashes the zeros.
    """
    for model, forms in (("70b", ("", "fp8", "w4")), ("30b-a3b", ("", "fp8"))):
        config: dict[str, Any] = dict(_MOE) if model == "30b-a3b" else SHAPES["70b"].config()
        for form in forms:
            folder = work / "-".join(filter(None, (model, form)))
            _write_model(folder, config, form)
            (folder / ".headers-only").touch()


def _write_model(folder: Path, config: dict[str, Any], form: str) -> None:
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(pair_paths()[0] / name, folder / name)
    if form:
        kind, group = _FORMS[form]
        config = config | {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": kind,
                "config_groups": {"group_0": {"targets": ["Linear"], **group}},
                "ignore": ["lm_head", "re:.*mlp.gate$"],
            }
        }
    write_json(folder / "config.json", config)
    file = folder / "model.safetensors"
    write_hollow_file(file, dict(_tensors(config, form)))
    with file.open("r+b") as handle:  # the logical shapes beside packed weights are read
        headers = read_file_headers(file) if form == "w4" else {}
        for name in (each for each in headers if each.endswith(".weight_shape")):
            outputs, words = headers[name.replace("_shape", "_packed")].shape
            handle.seek(headers[name].start)
            handle.write(b"".join(size.to_bytes(8, "little") for size in (outputs, 8 * words)))


def _tensors(config: Mapping[str, Any], form: str) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Names with dtype and shape."""
    hidden, heads, kv = (
        config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    width = config["head_dim"]
    yield "model.embed_tokens.weight", ("BF16", (_VOCAB, hidden))
    yield "lm_head.weight", ("BF16", (_VOCAB, hidden))
    yield "model.norm.weight", ("BF16", (hidden,))
    experts = config.get("num_experts")
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", ("BF16", (hidden,))
        sizes = {"q_proj": heads, "k_proj": kv, "v_proj": kv}
        linears = {f"self_attn.{name}": (size * width, hidden) for name, size in sizes.items()}
        linears["self_attn.o_proj"] = (hidden, heads * width)
        if experts:
            yield f"{at}.mlp.gate.weight", ("BF16", (experts, hidden))
            for norm in ("q_norm", "k_norm"):
                yield f"{at}.self_attn.{norm}.weight", ("BF16", (width,))
        for mlp in [f"mlp.experts.{each}" for each in range(experts)] if experts else ["mlp"]:
            linears |= dict.fromkeys((f"{mlp}.gate_proj", f"{mlp}.up_proj"), (inner, hidden))
            linears[f"{mlp}.down_proj"] = (hidden, inner)
        for name, (outputs, inputs) in linears.items():
            yield from _stored(f"{at}.{name}.weight", outputs, inputs, form)


def _stored(
    name: str, outputs: int, inputs: int, form: str
) -> Iterator[tuple[str, tuple[str, Any]]]:
    if form == "w4":
        yield f"{name}_packed", ("I32", (outputs, inputs // 8))
        yield f"{name}_scale", ("BF16", (outputs, inputs // _GROUP))
        yield f"{name}_shape", ("I64", (2,))
        return
    yield name, ("F8_E4M3" if form else "BF16", (outputs, inputs))
    if form:
        yield f"{name}_scale", ("BF16", (outputs, 1))


def predict(host: str, peer: str | None, name: str) -> None:
    """Write the predictions for this kind of host to ``name`` in its folder."""
    out = RESULTS / f"{host}-predicted"
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        (out / name).open("w", newline="", encoding="utf-8") as file,
    ):
        write_shapes(Path(folder))
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for plan in PLANS[host]:
            path = Path(folder) / plan.model
            for each in _planned(path, plan, workload=TRAFFIC[host]).predictions:
                row = {"model": plan.model, "gpu": each.candidate.gpu, **_figures(each)}
                writer.writerow({**row, **_peer(peer, path, each, TRAFFIC[host])})
                file.flush()


def _planned(path: Path, plan: Plan, *, workload: str) -> Planned:
    options = PlanOptions(
        workload=workload,
        gpus=plan.gpus,
        parallel=plan.layouts,
        weights=plan.weights,
        batch_sizes=plan.sizes,
        max_model_len=2048,
    )
    return make_plan(path, options)


_COLUMNS: Final = (
    *("model", "gpu", "layout", "gpus", "weights", "in_flight", "requests_per_s", "tokens_per_s"),
    *("ttft_mean_ms", "ttft_p95_ms", "tpot_mean_ms", "tpot_p95_ms", "e2e_mean_ms"),
    *("ttft_error", "tpot_error", "usd_per_1m_tokens", "weights_gib", "kv_tokens", "bound"),
    *("peer_ttft_ms", "peer_tpot_ms"),
)


def _figures(each: Prediction) -> dict[str, Any]:
    latencies, errors = dict(each.latencies), each.errors
    return {
        "layout": each.candidate.parallel.text,
        "gpus": each.candidate.devices,
        "weights": each.candidate.variant.weights,
        "in_flight": each.in_flight,
        "requests_per_s": f"{each.requests_per_s:.4g}",
        "tokens_per_s": f"{each.tokens_per_s:.4g}",
        "ttft_mean_ms": f"{latencies['ttft mean']:.4g}",
        "ttft_p95_ms": f"{latencies['ttft p95']:.4g}",
        "tpot_mean_ms": f"{latencies['tpot mean']:.4g}",
        "tpot_p95_ms": f"{latencies['tpot p95']:.4g}",
        "e2e_mean_ms": f"{latencies['e2e mean']:.4g}",
        "ttft_error": f"{errors['ttft']:.2f}",
        "tpot_error": f"{errors['tpot']:.2f}",
        "usd_per_1m_tokens": f"{each.cost_per_1m:.4g}",
        "weights_gib": f"{each.memory.weight_bytes / 2**30:.1f}",
        "kv_tokens": each.memory.kv_tokens,
        "bound": each.bound,
    }


def measured(out: Path, runs: Sequence[Path], peer: str | None) -> None:
    """Write means of every complete cell, the prediction and predicted ÷ measured − 1."""
    with (
        tempfile.TemporaryDirectory() as folder,
        out.open("w", newline="", encoding="utf-8") as file,
    ):
        write_shapes(Path(folder))
        head = ["model", "variant", *_COLUMNS[1:6], "prompt_tokens", "output_tokens"]
        head += [f"{name}{end}" for name in _COMPARED for end in ("", "_predicted", "_error")]
        head += _COLUMNS[-2:]
        writer = csv.DictWriter(file, head, lineterminator="\n")
        writer.writeheader()
        for path in runs:
            with tempfile.TemporaryDirectory() as scratch:
                run = opened(path, Path(scratch))
                for trial in sorted(run.trials, key=lambda each: (each.variant, each.batch_size)):
                    writer.writerows(_beside(run, trial, Path(folder), peer))


_COMPARED: Final = {
    "requests_per_s": "",
    "ttft_mean_ms": "ttft",
    "tpot_mean_ms": "tpot",
    "e2e_mean_ms": "e2e",
}
"""Figures of a prediction, by their names in ``Latencies``."""


def _beside(
    run: Run, trial: TrialRecord, folder: Path, peer: str | None
) -> Iterator[dict[str, Any]]:
    """The row of a trial, or none where a request of it failed; predicted with its own flags."""
    rows, size = timed_requests(trial, 0), trial.batch_size
    cell = next(c for c in run.cells if (c.variant, c.batch_size) == (trial.variant, size))
    variant = run.engines[trial.variant].variant
    args = plain_args(variant)
    if rows is None or cell.rps_mean is None:
        return
    name = Path(variant.model_path).name
    form = next((form for form in ("fp8", "w4") if name.endswith(f"-{form}")), "")
    degrees = {short: int(args.get(f"{long}_parallel_size", 1)) for short, long in _DEGREES.items()}
    layout = "x".join(f"{short}{degree}" for short, degree in degrees.items() if degree > 1)
    layout = "x".join(filter(None, (layout, "ep" if args.get("enable_expert_parallel") else "")))
    lengths = folder / "lengths.jsonl"
    lines = (
        {"timestamp": 0, "input_length": each.prompt, "output_length": each.output, "hash_ids": []}
        for each in rows.requests
    )
    lengths.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    devices, gpu = math.prod(degrees.values()), known_name(run.require_environment().device)
    shape = folder / name.removesuffix(f"-{form}")
    planned = _planned(
        shape,
        Plan(
            f"{devices}x {gpu}" if devices > 1 else str(gpu),
            name,
            layout or "1",
            {"fp8": "FP8_DYNAMIC", "w4": "W4A16"}.get(form, "16bit"),
            str(size),
        ),
        workload=str(lengths),
    )
    candidate = planned.predictions[0].candidate
    alike = replace(candidate.variant, engine_args=variant.engine_args, prefix_cache=False)
    [each] = evaluate(
        replace(candidate, variant=alike),
        target=planned.target,
        traffic=planned.traffic,
        constraints=(),
        sizes=(size,),
    )
    figures, latencies = _figures(each), dict(rows.latencies.items())
    row = {"model": name, "variant": trial.variant, "gpu": gpu}
    row |= {column: figures[column] for column in _COLUMNS[2:6]}
    row["prompt_tokens"], row["output_tokens"] = (
        round(mean(getattr(each, what) for each in rows.requests)) for what in ("prompt", "output")
    )
    for figure, latency in _COMPARED.items():
        value = 1e3 * (latencies[latency] or 0.0) if latency else cell.rps_mean.value
        row |= {figure: f"{value:.4g}", f"{figure}_predicted": figures[figure]}
        row[f"{figure}_error"] = f"{float(figures[figure]) / value - 1:.3f}"
    means = "prompt={prompt_tokens},output={output_tokens}".format(**row)
    yield row | _peer(peer, shape, each, means)


_DEGREES: Final = {"tp": "tensor", "dp": "data", "pp": "pipeline"}


def _peer(program: str | None, path: Path, each: Prediction, traffic: str) -> dict[str, str]:
    """AIConfigurator's, of one engine's share of the requests; it has no 4 bits for vLLM."""
    weights, parallel = each.candidate.variant.weights, each.candidate.parallel
    form = {"16bit": "bfloat16", "FP8_DYNAMIC": "fp8"}.get(weights)
    experts = each.candidate.stored.experts is not None
    if program is None or form is None or each.in_flight < parallel.data:
        return {}
    prompt, output = (part.partition("=")[2] for part in traffic.split(","))
    words = (
        *("--model-path", str(path), "--system", _SYSTEMS[each.candidate.gpu], "--backend", "vllm"),
        *("--isl", prompt, "--osl", output, "--gemm-quant-mode", form),
        *("--kvcache-quant-mode", "bfloat16", "--tp-size", str(parallel.tensor)),
        *("--batch-size", str(each.in_flight // parallel.data)),
        *(_peer_experts(parallel, form) if experts else ()),
    )
    answer = peer_answer(program, words)
    return {f"peer_{name}_ms": f"{answer[name]:.4g}" for name in ("ttft", "tpot")}


def _peer_experts(parallel: Parallelism, form: str) -> Iterator[str]:
    whole = parallel.devices if parallel.experts else 1
    yield from ("--attention-dp-size", str(parallel.data), "--moe-quant-mode", form)
    yield from ("--moe-ep-size", str(whole), "--moe-tp-size", str(parallel.devices // whole))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("shapes").add_argument("work", type=Path)
    predicted = kinds.add_parser("predict")
    predicted.add_argument("host", choices=PLANS)
    predicted.add_argument("--peer")
    predicted.add_argument("--name", default="predicted.csv")
    beside = kinds.add_parser("measured")
    beside.add_argument("out", type=Path)
    beside.add_argument("runs", type=Path, nargs="+")
    beside.add_argument("--peer")
    options = parser.parse_args()
    if options.what == "shapes":
        write_shapes(options.work)
    elif options.what == "measured":
        measured(options.out, options.runs, options.peer)
    else:
        predict(options.host, options.peer, options.name)


if __name__ == "__main__":
    main()
