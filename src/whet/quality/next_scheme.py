"""What to try next where a variant's few bits fail the gate: the cheapest step that loses less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.records import Estimate, QualityRecord, Variant
from whet.core.records.quality_checks import NextScheme
from whet.core.spec import SIXTEEN_BIT, MixedSpec, RecipeSpec, SpeculationSpec, VariantSpec
from whet.core.spec.traffic import NEXT_SCHEMES
from whet.quality.paired import SIGNIFICANCE, holm

_MIXED_BITS: Final = 6.0
"""Bits a weight of the mixed step: half of the way from four bits to eight."""
_GB: Final = 1e9

_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "W4A16": ("W4A16", "mixed", "W8A16", "W8A8", "FP8_DYNAMIC", SIXTEEN_BIT),
    "mixed": ("W8A16", "W8A8", "FP8_DYNAMIC", SIXTEEN_BIT),
    "W8A8": ("W8A16", "FP8_DYNAMIC", SIXTEEN_BIT),
    "FP8": ("FP8_DYNAMIC", "W8A16", SIXTEEN_BIT),
    "FP8_DYNAMIC": ("W8A16", SIXTEEN_BIT),
    "W8A16": (SIXTEEN_BIT,),
}
"""From what failed, the steps that round less, cheapest first: of forms of eight bits the one that
leaves the inputs alone, then integers, then floats. Nothing leads from ``W8A16`` to forms that
round the inputs too."""

Capable = Callable[[RecipeSpec], bool]
"""Whether whet can make this recipe of this model, and the device and the engine can serve it."""
WeightBytes = Callable[[RecipeSpec | None], int | None]
"""Bytes that a recipe's checkpoint will take, 16 bits for None; None where it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedVariant:
    """A variant, its measured quality, the recipe of its weights and the tolerance it failed."""

    variant: Variant
    record: QualityRecord
    recipe: RecipeSpec | None
    tolerance: float


def propose_next(
    failed: FailedVariant,
    allowed: Sequence[str],
    capable: Capable,
    weight_bytes: WeightBytes | None = None,
) -> NextScheme | None:
    """The cheapest allowed scheme above the failed one, with the YAML that tries it.

    None where nothing is allowed or possible, the verdict at the tolerance is not ``fail``
    (*unknown* asks for more text, not for more bits), the weights are not of a recipe, or what
    failed is no loss that bits explain: probabilities that are not numbers. Raises ``UsageError``
    for a word in ``allowed`` that is no step.
    """
    for word in allowed:
        if word not in NEXT_SCHEMES:
            near = did_you_mean(word, NEXT_SCHEMES)
            raise UsageError(
                f"quality.next_schemes: there is no {word!r}{near} "
                f"(known: {', '.join(NEXT_SCHEMES)})"
            )
    loss = _loss(failed)
    if failed.recipe is None or loss is None:
        return None
    for name, recipe in _steps(failed.recipe):
        if name in allowed and (recipe is None or capable(recipe)):
            return _proposal(failed, recipe, loss, weight_bytes)
    return None


def _steps(failed: RecipeSpec) -> Iterator[tuple[str, RecipeSpec | None]]:
    """Each step's name and recipe, None for 16 bits; calibration and cache stay as they are."""
    narrow = failed.scheme.removesuffix("_ASYM")
    for name in _STEPS["mixed" if failed.mixed is not None else narrow]:
        if name == SIXTEEN_BIT:
            yield name, None
        elif name == "W4A16":
            if failed.method != "awq+gptq":
                yield name, _but(failed, method=_better(failed))
        elif name == "mixed":
            for keep in ("W8A16", "W8A8", SIXTEEN_BIT):
                mixed = MixedSpec.model_validate({"keep": keep, "bits_per_weight": _MIXED_BITS})
                yield name, _but(failed, method=_better(failed), mixed=mixed.model_dump())
                if failed.method == "rtn":
                    # Where no better method knows the architecture, rounding may still be mixed.
                    yield name, _but(failed, mixed=mixed.model_dump())
        else:
            yield name, _but(failed, scheme=name, method=None, mixed=None)
            yield name, _but(failed, scheme=name, method="rtn", mixed=None)


def _better(failed: RecipeSpec) -> str:
    """The method that loses least at four bits; on the demo pair GPTQ halves AWQ's divergence."""
    return "awq+gptq" if failed.method in ("gptq", "awq+gptq") else "gptq"


def _but(recipe: RecipeSpec, **changes: Any) -> RecipeSpec:
    return RecipeSpec.model_validate({**recipe.model_dump(), **changes})


def _proposal(
    failed: FailedVariant,
    recipe: RecipeSpec | None,
    loss: str,
    weight_bytes: WeightBytes | None,
) -> NextScheme:
    assert failed.recipe is not None
    cost = _cost(failed.recipe, recipe, weight_bytes)
    return NextScheme(
        variant=failed.variant.name,
        failed=failed.recipe.title,
        scheme=SIXTEEN_BIT if recipe is None else "+".join(recipe.schemes),
        method="none" if recipe is None else recipe.method,
        why=f"{loss}: {failed.recipe.title} loses too much here; {_words(failed.recipe, recipe)}"
        f"{cost}{_also_the_cache(recipe)}",
        recipe=_yaml(failed.variant, recipe),
    )


def _loss(failed: FailedVariant) -> str | None:
    """The measured loss that failed the tolerance, in words; None where there is none."""
    record = failed.record
    if dict(record.verdicts).get(failed.tolerance) != "fail":
        return None
    told = []
    ratio = record.perplexity_ratio
    if ratio is not None and ratio.value >= 1 + failed.tolerance:
        told.append(f"perplexity {_change(ratio)} against {100 * failed.tolerance:g} %")
    scored = [score for score in record.tasks if score.p_value is not None]
    adjusted = holm([score.p_value for score in scored if score.p_value is not None])
    for score, p in zip(scored, adjusted, strict=True):
        if p < SIGNIFICANCE and (score.lost or 0) > (score.gained or 0):
            told.append(f"{score.task} lost {score.lost} and gained {score.gained} of {score.n}")
    return ", ".join(told) or None


def _change(ratio: Estimate) -> str:
    said = f"{100 * (ratio.value - 1):+.2f} %"
    if ratio.low is None or ratio.high is None:
        return said
    return f"{said} [{100 * (ratio.low - 1):.2f}, {100 * (ratio.high - 1):.2f}]"


def _words(failed: RecipeSpec, recipe: RecipeSpec | None) -> str:
    """The step, as the end of a sentence."""
    if recipe is None:
        return "the same variant with 16-bit weights"
    if recipe.mixed is not None:
        kept = {"16bit": "16 bits", "FP8_DYNAMIC": "FP8"}.get(recipe.mixed.keep, "8 bits")
        return f"the same model with its most sensitive layers at {kept} ({recipe.title})"
    if recipe.scheme == failed.scheme:
        return f"the same bits chosen by {recipe.method}"
    return f"the same model at 8 bits ({recipe.title})"


def _cost(failed: RecipeSpec, recipe: RecipeSpec | None, weight_bytes: WeightBytes | None) -> str:
    """What it costs in memory, where that is known."""
    if recipe is not None and recipe.scheme == failed.scheme and recipe.mixed == failed.mixed:
        return " costs no memory"
    before = None if weight_bytes is None else weight_bytes(failed)
    after = None if weight_bytes is None else weight_bytes(recipe)
    if before is None or after is None:
        return " costs more memory"
    return f" costs about {(after - before) / _GB:.2g} GB more"


def _also_the_cache(recipe: RecipeSpec | None) -> str:
    if recipe is None or recipe.kv_cache is None:
        return ""
    return f"; its {recipe.kv_cache} KV cache rounds as well, so try it in 16 bits too"


def _yaml(variant: Variant, recipe: RecipeSpec | None) -> str:
    """Lines for ``recipes:`` and ``variants:`` of ``whet.yaml``."""
    weights = SIXTEEN_BIT if recipe is None else _recipe_name(recipe)
    snippet: dict[str, Any] = {}
    if recipe is not None:
        told = recipe.model_dump(mode="json", exclude_defaults=True)
        snippet["recipes"] = {weights: {"method": recipe.method, "scheme": recipe.scheme, **told}}
    item = _variant(variant, weights).model_dump(mode="json", exclude_defaults=True)
    snippet["variants"] = {_variant_name(variant, weights): item}
    return yaml.safe_dump(snippet, sort_keys=False, allow_unicode=True)


def _recipe_name(recipe: RecipeSpec) -> str:
    scheme = recipe.scheme.lower().replace("_", "-")
    mixed = "" if recipe.mixed is None else "-mixed"
    return f"{scheme}-{recipe.method}{mixed}"


def _variant_name(variant: Variant, weights: str) -> str:
    """``awq+spec`` with other weights is ``w8a8-smoothquant+spec``."""
    rest = variant.name.removeprefix(variant.weights)
    follows = rest != variant.name and (not rest or not rest[0].isalnum())
    return f"{weights}{rest}" if follows else f"{variant.name}-{weights}"


def _variant(variant: Variant, weights: str) -> VariantSpec:
    """The same levers on other weights; flags that all variants share are not repeated."""
    spoken = variant.speculation
    return VariantSpec(
        weights=weights,
        speculation=None
        if spoken is None
        else SpeculationSpec.model_validate(
            {
                "method": spoken.method,
                "num_tokens": spoken.num_tokens,
                "draft": spoken.draft_path,
                "options": dict(spoken.options),
            }
        ),
        prefix_cache=variant.prefix_cache,
        batching="static" if variant.batching == "static" else "continuous",
        loras=dict(variant.loras),
        max_loras=variant.max_loras,
        args={key: value for key, value in variant.engine_args if key in variant.own_args},
        env=dict(variant.env),
    )
