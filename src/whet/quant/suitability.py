"""Whether a recipe can be made of a checkpoint: from its headers alone, and without torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whet.checkpoint.files import read_json
from whet.checkpoint.headers import read_headers
from whet.checkpoint.stored import read_claim
from whet.core.errors import QuantizationError
from whet.core.spec import GROUPED, RecipeSpec
from whet.quant.architecture import (
    Architecture,
    Shapes,
    read_architecture,
    require_cached,
    require_groups,
    require_measurable,
)

FOLDING: Final = ("awq", "smoothquant", "auto")
"""Methods that move scales into the layer before."""
_SIMPLE: Final = (("FP8_DYNAMIC", 128), ("W4A16", 128), ("W4A16", 64), ("W4A16", 32))
"""Schemes and group sizes that rounding to nearest makes, the first that work are proposed."""


def recipe_problem(folder: Path, recipe: RecipeSpec) -> str | None:
    """Why ``recipe`` cannot be made of the checkpoint, with a recipe that can; None if it can.

    ``CheckpointError`` for a folder that cannot be read.
    """
    if _is_quantized(folder):
        return (
            "the model is quantized already, and recipes need 16-bit weights; give the 16-bit "
            "checkpoint that it was made of, or leave the recipe out and serve it as stored"
        )
    shapes = _shapes(folder)
    reason = _refusal(folder, shapes, recipe)
    if reason is None:
        return None
    others = [settings_text(other) for other in _working(folder, shapes, recipe)]
    if not others:
        return reason
    return f"{reason.rpartition('; ')[0] or reason}; use a recipe with {', or with '.join(others)}"


def working_recipes(folder: Path, recipe: RecipeSpec) -> tuple[RecipeSpec, ...]:
    """``recipe`` if it can be made, else the simpler ones that can: one for each scheme.

    ``CheckpointError`` for a folder that cannot be read.
    """
    shapes = _shapes(folder)
    if _refusal(folder, shapes, recipe) is None:
        return (recipe,)
    return tuple(_working(folder, shapes, recipe))


def settings_text(recipe: RecipeSpec) -> str:
    """``method: rtn, scheme: W4A16, group_size: 64``, as whet.yaml has them."""
    names = ["method", "scheme", *(["group_size"] if recipe.scheme in GROUPED else [])]
    names += [] if recipe.kv_cache is None else ["kv_cache"]
    return ", ".join(f"{name}: {getattr(recipe, name)}" for name in names)


def _is_quantized(folder: Path) -> bool:
    """Whether config.json or modelopt's file says so; ``read_facts`` compares that with tensors."""
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    return read_claim(folder, config | text if isinstance(text, dict) else config) is not None


def _shapes(folder: Path) -> Shapes:
    return {name: header.shape for name, header in read_headers(folder).items()}


def _working(folder: Path, shapes: Shapes, recipe: RecipeSpec) -> Iterator[RecipeSpec]:
    """The recipe by GPTQ or with smaller groups; else round to nearest, one for each scheme."""
    if recipe.method in ("awq", "auto"):
        other = recipe.model_copy(update={"method": "gptq"})
        if _refusal(folder, shapes, other) is None:
            yield other
            return
    regroups = recipe.scheme in GROUPED and recipe.scheme != "W4A8_FP8"
    smaller = [size for size in (64, 32) if size < recipe.group_size and regroups]
    for size in smaller:
        other = recipe.model_copy(update={"group_size": size})
        if _refusal(folder, shapes, other) is None:
            yield other
            return
    schemes: set[str] = set()
    for scheme, size in _SIMPLE:
        text = recipe.calibration
        other = RecipeSpec.model_validate(
            {"method": "rtn", "scheme": scheme, "group_size": size, "calibration": text}
        )
        if scheme not in schemes and _refusal(folder, shapes, other) is None:
            schemes.add(scheme)
            yield other


def _refusal(folder: Path, shapes: Shapes, recipe: RecipeSpec) -> str | None:
    config = read_json(folder / "config.json")
    dtypes = (config.get("dtype"), config.get("torch_dtype"))
    if recipe.scheme == "W4A8_FP8" and "float16" in dtypes:
        return "W4A8_FP8 computes in bfloat16, and the model is float16; save it in bfloat16 first"
    try:
        require_suitable(read_architecture(config, shapes), shapes, recipe)
    except QuantizationError as error:
        return str(error)
    return None


def require_suitable(architecture: Architecture, shapes: Shapes, recipe: RecipeSpec) -> None:
    """``QuantizationError`` where the recipe needs what the architecture does not give."""
    for what in inputs_needed(recipe):
        folds = what.startswith("method") and recipe.method in FOLDING
        require_measurable(architecture, what, folds=folds)
    if recipe.kv_cache is not None:
        require_cached(architecture)
    if recipe.scheme in GROUPED:
        require_groups(shapes, architecture.linears, recipe.group_size)


def inputs_needed(recipe: RecipeSpec) -> list[str]:
    """The parts of a recipe that need the inputs of the layers."""
    parts = (
        (recipe.method != "rtn", f"method {recipe.method}"),
        (recipe.scheme == "FP8", "the scheme FP8 (its inputs have a fixed scale)"),
        (recipe.kv_cache is not None, "an FP8 KV cache with scales"),
        (recipe.mixed is not None, "mixed precision"),
    )
    return [what for needed, what in parts if needed]
