"""Real architectures, tiny and random: quantized and deployed, compared with transformers.

    python -m benchmarks.tiny_models_engine OUT [--cases llama/awq gpt_oss/mxfp4] [--at-once 2]

Each checkpoint is quantized to W4A16, or written in a form that arrives quantized
(``tiny_stored``), and run by the installed vLLM. The log-probabilities that it gives a few random
prompts are compared with those of transformers on the dequantized weights, in float32. The same
checkpoint with the scales of one layer's last projections permuted must not pass. Writes
``logprobs.csv``; OUT/work holds the checkpoints and logs. ``TOLERANCE`` is the bound.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from torch import Tensor

from benchmarks.tiny_models import KINDS, MIXTURES, STORED, TOWERS, write_dequantized, write_tiny
from benchmarks.tiny_stored import FORMS, write_stored, write_wrong
from whet.checkpoint import read_facts
from whet.client import Failure, post_many
from whet.core.errors import WhetError
from whet.core.provenance import find_device
from whet.core.spec import EngineSpec, RecipeSpec
from whet.data import write_inputs
from whet.flow.quantize.serve_check import (
    CannotServe,
    Serving,
    engine_title,
    kernels_of,
    resolve_serving,
)
from whet.quant import quantize

TOLERANCE: Final = 0.25
"""Of the distance between the 16-bit model and the dequantized one, both RMS in nats."""
_ROUNDED_INPUTS: Final = {"fp8-block": 1.5}
"""The engine rounds inputs to 8 bits as well, which the dequantized weights do not show."""
_PROMPTS, _LENGTH, _TOP = 8, 48, 20
_TIMEOUT_S: Final = 120.0
_LAST: Final = ("down_proj", "w2")
CASES: Final = (
    *(f"{kind}/awq" for kind in (*KINDS, *TOWERS)),
    *("gpt_oss/mxfp4", "qwen3/fp8-block", "deepseek_v3/fp8-block"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """RMS differences of log-probabilities, in nats, over the likeliest tokens at each place.

    ``difference`` and ``permuted`` against the dequantized weights in transformers, ``rounding`` of
    these against the 16-bit model. ``noise`` is the engine's with 16-bit weights, where asked for.
    """

    model_type: str
    mixture: bool
    method: str
    quantized: int
    left: int
    engine: str
    device: str
    kernels: str
    difference: float
    permuted: float
    rounding: float
    noise: float
    passes: bool
    detected: bool
    problem: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A quantized checkpoint, its permuted copy, and what transformers makes of the prompts."""

    kind: str
    method: str
    folder: Path
    permuted: Path
    exact: Tensor
    sixteen: Tensor


def prompts(vocabulary: int) -> list[list[int]]:
    """Random token ids, the same in every run."""
    dice = torch.Generator().manual_seed(7)
    ids = torch.randint(5, vocabulary, (_PROMPTS, _LENGTH), generator=dice)
    return [[int(each) for each in row] for row in ids]


@torch.no_grad()
def reference(folder: Path, vocabulary: int) -> Tensor:
    """Log-probabilities by transformers in float32: [prompts, length, V]."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    config = json.loads((folder / "config.json").read_text())
    auto = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32)
    result: Tensor = model(torch.tensor(prompts(vocabulary))).logits.log_softmax(-1)
    return result


def prepare(kind: str, method: str, work: Path, calibration: Path) -> Case:
    """Write, quantize and dequantize one checkpoint, and permute a copy."""
    base = work / f"{kind}-{method.replace('+', '-')}"
    source = write_tiny(kind, base / "source")
    vocabulary = read_facts(source).vocab_size
    if method in FORMS:
        folder, plain = base / "stored", base / "dequantized"
        write_stored(source, method, folder, plain)
        return Case(
            kind=kind,
            method=method,
            folder=folder,
            permuted=write_wrong(folder, method, base / "permuted"),
            exact=reference(plain, vocabulary),
            sixteen=reference(source, vocabulary),
        )
    recipe = recipe_of(method)
    done = quantize(source, base / "quantized", recipe, calibration=calibration)
    folder = Path(done.path)
    return Case(
        kind=kind,
        method=method,
        folder=folder,
        permuted=permute_scales(folder, base / "permuted"),
        exact=reference(write_dequantized(folder, base / "dequantized"), vocabulary),
        sixteen=reference(source, vocabulary),
    )


def recipe_of(method: str) -> RecipeSpec:
    """W4A16 in groups of 128, on little calibration text."""
    calibration = {"samples": 64, "max_tokens": 256}
    return RecipeSpec.model_validate({"method": method, "calibration": calibration})


def permute_scales(folder: Path, out: Path) -> Path:
    """A copy in which the scales of layer 1's last projections are in another order of rows."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, out)
    dice = torch.Generator().manual_seed(3)
    file = out / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        linear = name.removesuffix(".weight_scale")
        if linear != name and "layers.1." in name and linear.endswith(_LAST):
            order = torch.randperm(tensor.shape[0], generator=dice)
            tensors[name] = tensor[order].contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    return out


def ask(folder: Path, method: str | None, args: Mapping[str, Any], log: Path) -> tuple[Any, ...]:
    """Serve a checkpoint: the likeliest tokens at each place, the engine and its kernels."""
    recipe = None if method is None or method in FORMS else recipe_of(method)
    serving = Serving(name=folder.name, path=folder, recipe=recipe, max_model_len=256)
    engine, resolved = resolve_serving(serving, EngineSpec(args=dict(args)))
    with engine.serve(resolved, log=log) as server:
        bodies = [
            {"model": server.model_name, "prompt": ids, "max_tokens": 1, "prompt_logprobs": _TOP}
            for ids in prompts(read_facts(folder).vocab_size)
        ]
        replies = list(
            post_many(server.base_url, "/v1/completions", bodies, concurrency=4, timeout_s=120.0)
        )
        return replies, engine_title(resolved), " ".join(kernels_of(resolved, server))


def distance(replies: Sequence[Any], exact: Tensor) -> float:
    """RMS difference in nats over the likeliest tokens of every place."""
    differences = []
    for number, reply in enumerate(replies):
        if isinstance(reply, Failure):
            raise RuntimeError(f"no answer: {reply}")
        for place, entries in enumerate(reply["choices"][0]["prompt_logprobs"]):
            for token, entry in (entries or {}).items():
                true = float(exact[number, place - 1, int(token)])
                differences.append(float(entry["logprob"]) - true)
    return float(torch.tensor(differences).square().mean().sqrt())


def rounding(case: Case) -> float:
    """RMS over the likeliest tokens of the 16-bit model, of rounding to 4 bits."""
    top = case.sixteen.topk(_TOP, dim=-1).indices
    change = case.exact.gather(-1, top) - case.sixteen.gather(-1, top)
    return float(change.square().mean().sqrt())


def measure(case: Case, args: Mapping[str, Any], logs: Path, *, sixteen: bool = False) -> Row:
    """Serve both copies and compare them; ``problem`` says why there is no figure."""
    stored = read_facts(case.folder).stored
    difference = wrong = noise = float("nan")
    title = kernels = problem = ""
    try:
        replies, title, kernels = ask(
            case.folder, case.method, args, logs / f"{case.kind}-{case.method}.log"
        )
        difference = distance(replies, case.exact)
        replies, _, _ = ask(
            case.permuted, case.method, args, logs / f"{case.kind}-{case.method}-permuted.log"
        )
        wrong = distance(replies, case.exact)
        if sixteen:
            source = case.folder.parent / "source"
            replies, _, _ = ask(source, None, args, logs / f"{case.kind}-{case.method}-16.log")
            noise = distance(replies, case.sixteen)
    except (WhetError, CannotServe, RuntimeError) as error:
        problem = str(error).splitlines()[0][:300]
    bound = _ROUNDED_INPUTS.get(case.method, TOLERANCE) * rounding(case)
    return Row(
        model_type=case.kind,
        mixture=case.kind in (*MIXTURES, *STORED),
        method=case.method,
        quantized=stored.quantized_modules,
        left=stored.unquantized_modules,
        engine=title,
        device=find_device().name,
        kernels=kernels,
        difference=difference,
        permuted=wrong,
        rounding=rounding(case),
        noise=noise,
        passes=difference <= bound,
        detected=wrong > bound,
        problem=problem,
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="KIND/METHOD")
    parser.add_argument("--sixteen", action="store_true", help="run the 16-bit source too")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--args", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    work = options.out / "work"
    work.mkdir(parents=True)
    write_inputs(work / "inputs")
    calibration = work / "inputs" / "calibration.jsonl"
    args = {
        key: yaml.safe_load(value) for key, value in (each.split("=", 1) for each in options.args)
    }
    rows: list[Row] = []
    with ThreadPoolExecutor(options.at_once) as pool:
        jobs = []
        for kind, method in (each.split("/") for each in options.cases):
            case = prepare(kind, method, work, calibration)
            print(f"{kind} {method} prepared", flush=True)
            jobs.append(pool.submit(measure, case, args, work, sixteen=options.sixteen))
        for job in jobs:
            rows.append(row := job.result())
            print(
                f"{row.model_type} {row.method}: difference {row.difference:.4f}, permuted "
                f"{row.permuted:.4f}, rounding {row.rounding:.4f}, noise {row.noise:.4f} "
                f"{row.kernels} {row.problem}",
                flush=True,
            )
            with (options.out / "logprobs.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(asdict(row)), lineterminator="\n")
                writer.writeheader()
                writer.writerows(asdict(each) for each in rows)


if __name__ == "__main__":
    main()
