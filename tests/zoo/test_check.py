"""``whet check`` of published models on planned H100s: what runs there, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cli.stage import Said, Whet, write_spec
from tests.flow.stage import SHORT
from tests.zoo.models import names, write_model
from tests.zoo.recipes import AWQ, PLANS
from whet.core.errors import InfeasibleError

CARDS: Final = {
    "DeepSeek-V3": 16,
    "GLM-4.5-Air": 4,
    "GLM-5": 32,
    "Kimi-K2": 16,
    "Llama-3.1-70B": 2,
    "Llama-4-Scout": 4,
    "Llama-4-Scout-FP8-dynamic": 2,
    "MiniMax-M2.5": 4,
    "Mixtral-8x7B": 2,
    "Qwen3-Next-80B-A3B": 4,
    "nvidia-Llama-3.1-70B-FP8": 2,
    "nvidia-Qwen3-235B-NVFP4": 2,
}
"""GPUs of 80 GB, a power of 2, that hold the stored weights and some KV cache. The others: 1."""
NOT_PLANNED: Final = {
    *("GLM-5.2", "Kimi-K2.5", "LongCat-Flash", "MiMo-V2-Flash", "Nemotron-3-Ultra-550B"),
    *("Laguna-XS", "Step-3.7-Flash", "Hy3-295B", "Kimi-Linear-48B", "GLM-5-next"),
}
"""Read and tried by the quantizer only."""
SAMPLE: Final = {
    *("DeepSeek-V2-Lite", "Gemma-3-12b", "Llama-3.1-8B", "MiMo-7B", "Mistral-7B-v0.1"),
    *("Qwen3-VL-30B-A3B", "Qwen3.5-27B", "gpt-oss-20b"),
}
"""One of each kind; the others run with the long tests."""
FITTING: Final = [name for name in names() if name not in NOT_PLANNED]
LENGTH: Final = 2048
LIMITS: Final = {"max_input_tokens": 1900, "max_output_tokens": 100}
STORED: Final = ("fp16", "fp16+cache")


def sampled(models: list[str]) -> list[object]:
    full = pytest.mark.full
    return [name if name in SAMPLE else pytest.param(name, marks=full) for name in models]


def check(whet: Whet, folder: Path, name: str, cards: int) -> Said:
    """Check the stored weights, a prefix cache, the default recipe and every one that works."""
    write_model(name, folder / "target")
    variants: dict[str, Any] = {"fp16": {}, "fp16+cache": {"prefix_cache": True}}
    recipes = {}
    if name in PLANS:
        recipes["default"] = settings(AWQ)
        others = [text for text in PLANS[name].recipes if text != AWQ]
        recipes |= {settings(text)["scheme"]: settings(text) for text in others}
    write_spec(
        folder,
        model={"target": "./target"},
        engine={"args": {"max_model_len": LENGTH, "tensor_parallel_size": cards}},
        workload=SHORT | LIMITS,
        load={"concurrency": [8]},
        recipes=recipes,
        variants=variants | {recipe: {"weights": recipe} for recipe in recipes},
    )
    return whet("check", "--device", f"{cards}x H100 SXM", "--vllm", "0.26.0")


def settings(text: str) -> dict[str, Any]:
    """The keys of a recipe as ``settings_text`` writes them."""
    return dict(yaml.safe_load(f"{{{text}}}"))


def refusals(result: Said) -> dict[str, str]:
    """The reasons by variant; exit code 4 if there is one, else 0."""
    assert "Traceback" not in result.out + result.err
    lines = re.findall(r"^  ([\w+, -]+?): (.*)$", result.err, flags=re.MULTILINE)
    reasons = {name: text for names, text in lines for name in names.split(", ")}
    assert result.code == (InfeasibleError.exit_code if reasons else 0), result.err
    return reasons


def refused_recipes(name: str) -> set[str]:
    return {"default"} if name in PLANS and AWQ not in PLANS[name].recipes else set()


@pytest.mark.parametrize("name", sampled([name for name in FITTING if CARDS.get(name, 1) <= 8]))
def test_what_fits(name: str, whet: Whet, tmp_path: Path) -> None:
    """Only a recipe that cannot be made is refused, with its reason and the one that works."""
    reasons = refusals(check(whet, tmp_path, name, CARDS.get(name, 1)))
    assert set(reasons) == refused_recipes(name)
    for reason in reasons.values():
        plan = PLANS[name]
        assert reason.startswith("recipes.default: ")
        assert plan.reason in reason
        assert all(text in reason for text in plan.recipes)


@pytest.mark.parametrize("name", sampled(list(CARDS)))
def test_too_few_cards(name: str, whet: Whet, tmp_path: Path) -> None:
    """The stored weights are refused on half as many GPUs, and 4-bit ones are not.

    GLM-5 would need a quarter of its GPUs for 4 bits, and half of them for FP8.
    """
    reasons = refusals(check(whet, tmp_path, name, min(CARDS[name] // 2, 8)))
    too_large = {*STORED, "FP8_DYNAMIC"} if name == "GLM-5" else {*STORED}
    assert set(reasons) == too_large | refused_recipes(name)
    for variant in too_large:
        assert "leave no room for a KV cache" in reasons[variant] or (
            "tokens of KV cache fit" in reasons[variant]
        )
