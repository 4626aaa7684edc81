"""What is proposed where few bits fail: the ladder, its words and YAML that the spec reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core.errors import UsageError
from whet.core.records import Estimate, QualityRecord, TaskScore, Variant
from whet.core.records.engine import Speculation
from whet.core.records.quality_checks import NextScheme
from whet.core.spec import QualitySpec, RecipeSpec, Spec, parse_spec
from whet.core.spec.traffic import NEXT_SCHEMES
from whet.quality.next_scheme import FailedVariant, propose_next

EVERY = NEXT_SCHEMES


def variant(**changes: Any) -> Variant:
    fields: dict[str, Any] = {
        "name": "awq",
        "weights": "awq",
        "scheme": "W4A16",
        "model_path": "/models/awq",
        "speculation": None,
        "prefix_cache": False,
    }
    return Variant(**(fields | changes))


def record(verdict: str = "fail", **changes: Any) -> QualityRecord:
    fields: dict[str, Any] = {
        "variant": "awq",
        "baseline": "fp16",
        "perplexity": Estimate(value=8.0, low=7.0, high=9.0, samples=64),
        "perplexity_ratio": Estimate(value=1.031, low=1.027, high=1.035, samples=64),
        "nll": (),
        "tasks": (),
        "answers": (),
        "examples": (),
        "verdicts": ((0.01, verdict), (0.05, "pass")),
        "reason": None,
        "seconds": 1.0,
    }
    return QualityRecord(**(fields | changes))


def failed(made: dict[str, Any], **changes: Any) -> FailedVariant:
    fields: dict[str, Any] = {
        "variant": variant(),
        "record": record(),
        "recipe": RecipeSpec.model_validate(made),
        "tolerance": 0.01,
    }
    return FailedVariant(**(fields | changes))


def anything(recipe: RecipeSpec) -> bool:
    return True


def without(*schemes: str) -> Callable[[RecipeSpec], bool]:
    return lambda recipe: not set(schemes) & set(recipe.schemes)


def spec_with(snippet: str) -> Spec:
    """The snippet merged into a whole spec, as a person would."""
    told = yaml.safe_load(snippet)
    variants = {"fp16": {}, **told["variants"]}
    whole = {
        "name": "run",
        "model": {"target": "org/model", "draft": "org/draft"},
        "hardware": {"price_usd_per_hour": 1.0},
        "recipes": told.get("recipes", {}),
        "variants": variants,
    }
    return parse_spec(whole, base=Path("/"))


@pytest.mark.parametrize(
    ("recipe", "allowed", "capable", "scheme", "method"),
    [
        ({"method": "rtn"}, EVERY, anything, "W4A16", "gptq"),
        ({"method": "awq"}, EVERY, anything, "W4A16", "gptq"),
        ({"method": "gptq"}, EVERY, anything, "W4A16", "awq+gptq"),
        ({"method": "awq+gptq"}, EVERY, anything, "W4A16+W8A16", "awq+gptq"),
        # No W8A16 kernel, as on a CPU: the sensitive layers are kept in INT8 with rounded inputs.
        ({"method": "awq+gptq"}, EVERY, without("W8A16"), "W4A16+W8A8", "awq+gptq"),
        ({"method": "awq"}, ("mixed",), without("W8A16", "W8A8"), "W4A16+16bit", "gptq"),
        ({"method": "awq"}, ("FP8_DYNAMIC", "W8A8", "W8A16"), anything, "W8A16", "awq"),
        ({"method": "awq"}, ("W8A16", "W8A8"), without("W8A16"), "W8A8", "smoothquant"),
        ({"method": "awq"}, ("FP8_DYNAMIC",), anything, "FP8_DYNAMIC", "rtn"),
        ({"mixed": {"bits_per_weight": 5.0}}, EVERY, anything, "W8A16", "awq"),
        ({"scheme": "W8A8"}, EVERY, without("W8A16"), "FP8_DYNAMIC", "rtn"),
        ({"scheme": "FP8"}, EVERY, anything, "FP8_DYNAMIC", "rtn"),
        ({"scheme": "W8A16"}, EVERY, anything, "16bit", "none"),
        ({"scheme": "W4A16_ASYM"}, EVERY, anything, "W4A16_ASYM", "gptq"),
        # A model that can only be rounded to nearest.
        ({"method": "rtn"}, EVERY, lambda r: r.method == "rtn", "W4A16+W8A16", "rtn"),
        ({"method": "rtn"}, ("W8A8",), lambda r: r.method == "rtn", "W8A8", "rtn"),
    ],
)
def test_the_cheapest_allowed_step_that_can_run_is_proposed_and_parses(
    recipe: dict[str, Any],
    allowed: tuple[str, ...],
    capable: Callable[[RecipeSpec], bool],
    scheme: str,
    method: str,
) -> None:
    found = propose_next(failed(recipe), allowed, capable)
    assert found is not None
    assert (found.scheme, found.method) == (scheme, method)
    spec = spec_with(found.recipe)
    [name] = set(spec.variants) - {"fp16"}
    if scheme == "16bit":
        assert spec.variants[name].weights == "16bit"
    else:
        made = spec.recipes[spec.variants[name].weights]
        assert ("+".join(made.schemes), made.method) == (scheme, method)


def test_what_was_measured_and_what_it_costs_are_said() -> None:
    size = {None: 16_000_000_000, "W4A16": 5_000_000_000, "mixed": 6_500_000_000}

    def weigh(recipe: RecipeSpec | None) -> int | None:
        return size["mixed" if recipe and recipe.mixed else recipe and recipe.scheme]

    found = propose_next(failed({"method": "awq+gptq"}), EVERY, anything, weigh)
    assert found is not None
    assert (found.variant, found.failed) == ("awq", "awq+gptq W4A16 g128")
    assert "perplexity +3.10 % [2.70, 3.50] against 1 %" in found.why
    assert "most sensitive layers at 8 bits" in found.why
    assert "about 1.5 GB more" in found.why


def test_memory_that_is_not_known_is_not_invented() -> None:
    found = propose_next(failed({"method": "awq"}), ("W8A16",), anything, lambda _: None)
    assert found is not None
    assert "GB" not in found.why
    same = propose_next(failed({"method": "awq"}), ("W4A16",), anything)
    assert same is not None
    assert same.why.endswith("the same bits chosen by gptq costs no memory")


def test_a_lost_task_is_named_where_perplexity_holds() -> None:
    score = TaskScore(
        task="arithmetic",
        n=100,
        right=70,
        score=Estimate(value=0.7, low=0.6, high=0.8, samples=100),
        baseline_right=88,
        lost=20,
        gained=2,
        p_value=0.0001,
        detectable_drop=0.1,
    )
    ratio = Estimate(value=1.001, low=1.0, high=1.002, samples=64)
    found = propose_next(
        failed({}, record=record(perplexity_ratio=ratio, tasks=(score,))), EVERY, anything
    )
    assert found is not None
    assert found.why.startswith("arithmetic lost 20 and gained 2 of 100: awq W4A16 g128")


@pytest.mark.parametrize(
    "changes",
    [
        {"record": record("pass")},
        {"record": record("unknown")},
        {"tolerance": 0.05},
        {"tolerance": 0.02},
        {"recipe": None},
        # Log-probabilities that are NaN: a fault, which more bits do not mend.
        {"record": record(perplexity=None, perplexity_ratio=None)},
    ],
)
def test_nothing_is_proposed_for_what_bits_do_not_explain(changes: dict[str, Any]) -> None:
    assert propose_next(failed({}, **changes), EVERY, anything) is None


def test_nothing_is_proposed_where_nothing_is_allowed_or_can_run() -> None:
    assert propose_next(failed({}), QualitySpec().next_schemes, anything) is None
    assert propose_next(failed({}), ("W8A16", "mixed"), lambda _: False) is None
    with pytest.raises(UsageError, match="did you mean 'W8A16'"):
        propose_next(failed({}), ("W8A61",), anything)


def test_the_spec_takes_the_steps_and_refuses_others() -> None:
    assert QualitySpec(next_schemes=("mixed", "W8A8")).next_schemes == ("mixed", "W8A8")
    with pytest.raises(ValueError, match="next_schemes"):
        QualitySpec.model_validate({"next_schemes": ["W2A16"]})


def test_the_variant_keeps_its_levers_and_its_recipe_what_was_set() -> None:
    one = variant(
        name="awq+spec",
        speculation=Speculation(method="ngram", num_tokens=6, draft_path=None),
        prefix_cache=True,
        engine_args=(("max_model_len", 4096), ("max_num_seqs", 8)),
        own_args=("max_num_seqs",),
    )
    calibration = {"samples": 64, "seed": 3}
    found = propose_next(
        failed({"calibration": calibration, "kv_cache": "fp8"}, variant=one), ("W8A8",), anything
    )
    assert isinstance(found, NextScheme)
    spec = spec_with(found.recipe)
    made = spec.variants["w8a8-smoothquant+spec"]
    assert made.speculation is not None
    assert (made.speculation.method, made.speculation.num_tokens) == ("ngram", 6)
    assert made.prefix_cache is True
    assert made.args == {"max_num_seqs": 8}
    recipe = spec.recipes[made.weights]
    assert (recipe.calibration.samples, recipe.calibration.seed) == (64, 3)
    assert recipe.kv_cache == "fp8"
    assert "KV cache rounds as well" in found.why
