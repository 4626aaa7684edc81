"""Real architectures, tiny and random: quantized and deployed, compared with transformers.

Each checkpoint is quantized to W4A16 and run by the installed vLLM. The log-probabilities that it
gives a few random prompts are compared with those of transformers on the dequantized weights, in
float32. The same checkpoint with the scales of one layer's last projections permuted must not pass.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from tests.quant.tiny_models import write_dequantized, write_tiny
from whet.checkpoint import read_facts
from whet.client import Failure, post_many
from whet.core.spec import EngineSpec, RecipeSpec
from whet.engines import get_profile
from whet.flow.serving import plain_variant, resolve_alone
from whet.quant import quantize

TOLERANCE: Final = 0.25
"""Of the distance between the 16-bit model and the dequantized one, both RMS in nats."""
_PROMPTS, _LENGTH, _TOP = 8, 48, 20
_TIMEOUT_S: Final = 120.0
_LAST: Final = ("down_proj", "w2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """RMS differences of log-probabilities, in nats, over the likeliest tokens at each place.

    ``difference`` and ``permuted`` against the dequantized weights in transformers, ``rounding`` of
    these against the 16-bit model.
    """

    difference: float
    permuted: float
    rounding: float
    kernels: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A quantized checkpoint, its permuted copy, and what transformers makes of the prompts."""

    recipe: RecipeSpec
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
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    result: Tensor = model(torch.tensor(prompts(vocabulary))).logits.log_softmax(-1)
    return result


def prepare(kind: str, method: str, work: Path, calibration: Path) -> Case:
    """Write, quantize and dequantize one checkpoint, and permute a copy."""
    source = write_tiny(kind, work / "source")
    vocabulary = read_facts(source).vocab_size
    recipe = recipe_of(method)
    folder = Path(quantize(source, work / "quantized", recipe, calibration=calibration).path)
    return Case(
        recipe=recipe,
        folder=folder,
        permuted=permute_scales(folder, work / "permuted"),
        exact=reference(write_dequantized(folder, work / "dequantized"), vocabulary),
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


def ask(folder: Path, recipe: RecipeSpec) -> tuple[Sequence[Any], str]:
    """Serve a checkpoint: the likeliest tokens at each place, and the engine's kernels."""
    spec, scheme = EngineSpec(), recipe.stored_scheme
    variant = plain_variant(folder, spec, max_model_len=256, scheme=scheme)
    engine, resolved = resolve_alone(variant, spec)
    with engine.serve(resolved, log=folder.with_suffix(".log")) as server:
        bodies = [
            {"model": server.model_name, "prompt": ids, "max_tokens": 1, "prompt_logprobs": _TOP}
            for ids in prompts(read_facts(folder).vocab_size)
        ]
        answers = post_many(
            server.base_url, "/v1/completions", bodies, concurrency=4, timeout_s=_TIMEOUT_S
        )
        facts = get_profile(resolved.engine).read_log(server.log_text())
        return list(answers), " ".join(facts.weight_kernels)


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


def measure(case: Case) -> Measured:
    """Serve both copies and compare them."""
    answers, kernels = ask(case.folder, case.recipe)
    permuted, _ = ask(case.permuted, case.recipe)
    return Measured(
        difference=distance(answers, case.exact),
        permuted=distance(permuted, case.exact),
        rounding=rounding(case),
        kernels=kernels,
    )
