"""Whether a recipe can be made of a checkpoint: from its headers, and a trial of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from whet.checkpoint.config import read_shape
from whet.checkpoint.files import read_json
from whet.checkpoint.headers import read_headers
from whet.core.errors import QuantizationError
from whet.core.spec import GROUPED, RecipeSpec
from whet.quant.architecture import (
    HEAD_INPUTS,
    Architecture,
    linear_dtype,
    read_architecture,
    require_cached,
    require_groups,
)

FOLDING: Final = ("awq", "smoothquant", "auto")
"""Methods that move scales into the layer before."""
_SIMPLE: Final = (("FP8_DYNAMIC", 128), ("W4A16", 128), ("W4A16", 64), ("W4A16", 32))
"""Schemes and group sizes that rounding to nearest makes, the first that work are proposed."""
_TRIAL: Final = ((0,) * 8,)
"""Token ids that a layer of each kind is tried with."""


class Source:
    """A checkpoint that recipes are made of. Its layers are tried at most once."""

    def __init__(self, folder: Path) -> None:
        """Read the headers; ``CheckpointError`` for a folder that cannot be read."""
        self.folder, self.headers = folder, read_headers(folder)
        self.config = read_json(folder / "config.json")
        self.shapes = {name: header.shape for name, header in self.headers.items()}

    @cached_property
    def architecture(self) -> Architecture:
        """The map of its layers; ``QuantizationError`` where it has no decoder layers."""
        return read_architecture(self.config, self.shapes)

    @cached_property
    def unmeasured(self) -> str | None:
        """Why the inputs of its layers cannot be measured; a layer of each kind is tried."""
        return self._trial("try_layers")

    def _trial(self, step: str) -> str | None:
        """Why a step of the stream fails without weights."""
        import torch

        from whet.quant.stream import LayerStream

        try:
            stream = LayerStream(self.folder, _TRIAL, self.architecture, torch.device("meta"))
            shapes = self.shapes.items()
            getattr(stream, step)({n: torch.empty(shape, device="meta") for n, shape in shapes})
        except QuantizationError as error:
            return str(error.args[0])
        return None

    def refusal(self, recipe: RecipeSpec) -> str | None:
        """Why ``recipe`` cannot be made of it."""
        try:
            self.require_suitable(recipe)
        except QuantizationError as error:
            return str(error)
        return None

    def require_suitable(self, recipe: RecipeSpec) -> None:
        """``QuantizationError`` where the recipe needs what the checkpoint does not give.

        ``CheckpointError`` where the tensors are not those of its model in transformers.
        """
        _ = self.architecture.head or self.unmeasured
        dtypes = (self.config.get("dtype"), self.config.get("torch_dtype"))
        if recipe.scheme == "W4A8_FP8" and "float16" in dtypes:
            raise QuantizationError(
                "W4A8_FP8 computes in bfloat16, and the model is float16",
                fix="save it in bfloat16 first",
            )
        architecture, needed = self.architecture, inputs_needed(recipe)
        if needed and architecture.head:
            raise self._refusal(needed, "the inputs", HEAD_INPUTS)
        if architecture.unfolded is not None and recipe.method in FOLDING:
            instead = "" if self.unmeasured else "method gptq, or "
            raise self._refusal(needed, "the scales", architecture.unfolded, instead)
        linear_dtype(self.headers, architecture.linears)
        if recipe.kv_cache is not None:
            require_cached(architecture)
        if recipe.scheme in GROUPED:
            require_groups(self.shapes, architecture.linears, recipe.group_size)
        if needed and self.unmeasured is not None:
            raise self._refusal(needed, "the inputs", self.unmeasured)
        if recipe.method == "auto" and (why := self._trial("try_head")) is not None:
            raise self._refusal(needed, "the output", why)

    def _refusal(self, what: str, needed: str, why: str, instead: str = "") -> QuantizationError:
        return QuantizationError(
            f"{what} needs {needed} of {self.architecture.model_type!r} layers, but {why}",
            fix=f"use {instead}round to nearest (--method rtn with W4A16, or --scheme FP8_DYNAMIC)",
        )


def recipe_problem(folder: Path, recipe: RecipeSpec) -> str | None:
    """Why ``recipe`` cannot be made of the checkpoint, with a recipe that can; None if it can.

    ``CheckpointError`` for a folder that cannot be read.
    """
    if read_shape(folder).claim is not None:  # ``read_facts`` compares it with the tensors
        return (
            "the model is quantized already, and recipes need 16-bit weights; give the 16-bit "
            "checkpoint that it was made of, or leave the recipe out and serve it as stored"
        )
    source = read_source(folder)
    if (reason := source.refusal(recipe)) is None:
        return None
    others = ", or with ".join(map(settings_text, _working(source, recipe)))
    return (
        f"{reason.rpartition('; ')[0] or reason}; use a recipe with {others}" if others else reason
    )


def working_recipes(folder: Path, recipe: RecipeSpec) -> tuple[RecipeSpec, ...]:
    """``recipe`` if it can be made, else the simpler ones that can: one for each scheme.

    ``CheckpointError`` for a folder that cannot be read.
    """
    source = read_source(folder)
    return (recipe,) if source.refusal(recipe) is None else tuple(_working(source, recipe))


def read_source(folder: Path) -> Source:
    """The checkpoint in ``folder``, whose layers need no second trial while no file changes."""
    files = sorted(each for each in folder.iterdir() if each.exists())
    return _source(folder, tuple((each.name, each.stat().st_mtime_ns) for each in files))


@lru_cache(maxsize=2)
def _source(folder: Path, _files: tuple[tuple[str, int], ...]) -> Source:
    return Source(folder)


def settings_text(recipe: RecipeSpec) -> str:
    """``method: rtn, scheme: W4A16, group_size: 64``, as whet.yaml has them."""
    names = ["method", "scheme", *(["group_size"] if recipe.scheme in GROUPED else [])]
    names += [] if recipe.kv_cache is None else ["kv_cache"]
    return ", ".join(f"{name}: {getattr(recipe, name)}" for name in names)


def _working(source: Source, recipe: RecipeSpec) -> Iterator[RecipeSpec]:
    """The recipe by GPTQ or with smaller groups; else round to nearest, one for each scheme."""
    changes: list[dict[str, object]] = []
    if recipe.method in ("awq", "auto"):
        changes.append({"method": "gptq"})
    if recipe.scheme in GROUPED and recipe.scheme != "W4A8_FP8":
        changes += [{"group_size": size} for size in (64, 32) if size < recipe.group_size]
    for change in changes:
        other = recipe.model_copy(update=change)
        if source.refusal(other) is None:
            yield other
            return
    schemes: set[str] = set()
    for scheme, size in _SIMPLE:
        words = {"method": "rtn", "scheme": scheme, "group_size": size}
        other = RecipeSpec.model_validate({**words, "calibration": recipe.calibration})
        if scheme not in schemes and source.refusal(other) is None:
            schemes.add(scheme)
            yield other


def inputs_needed(recipe: RecipeSpec) -> str:
    """The first part of a recipe that needs the inputs of the layers; empty where none does."""
    if recipe.method != "rtn":
        return f"method {recipe.method}"
    if recipe.scheme == "FP8":
        return "the scheme FP8 (its inputs have a fixed scale)"
    cache = "" if recipe.kv_cache is None else "an FP8 KV cache with scales"
    return cache or ("" if recipe.mixed is None else "mixed precision")
