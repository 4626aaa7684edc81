"""Options of ``whet quantize``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter
from pydantic import ValidationError

from whet.core.errors import UsageError
from whet.core.spec import GROUPED, RecipeSpec, problem_words


@Parameter(name="*", group=Group.create_ordered("Recipe"))
@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeOptions:
    """The scheme and how it is computed."""

    scheme: str | None = None
    """W4A16, W8A16, W8A8, FP8_DYNAMIC, FP8 or W4A8_FP8. Default: W4A16."""
    method: str | None = None
    """awq, gptq, rtn, or auto: of awq and gptq the one with less KL on held-out text; smoothquant
    for W8A8. Default: the scheme's usual one."""
    group_size: int | None = None
    """Columns that share a scale: 32, 64 or 128. Default: 128."""
    kv_cache: str | None = None
    """fp8: store scales of keys and values too."""
    bits_per_weight: float | None = None
    """Mixed precision: average bits per weight at most; the worst units stay in 16 bit."""


@Parameter(name="*", group=Group.create_ordered("Calibration"))
@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationOptions:
    """The text that activations are measured on."""

    calibration: Path | None = None
    """JSONL: a request log, messages, prompt or text. Default: the built-in text."""
    samples: int = 512
    """Number of samples."""
    max_tokens: int = 512
    """Tokens of each sample at most."""
    seed: int = 0
    """Seed that draws the samples."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeOptions:
    """All options of ``whet quantize``; model and folder are arguments."""

    device: Annotated[str | None, Parameter(group="Parameters")] = None
    """cpu, cuda or cuda:1. Default: the first GPU if there is one."""
    recipe: RecipeOptions = RecipeOptions()
    text: CalibrationOptions = CalibrationOptions()

    def recipe_spec(self) -> RecipeSpec:
        """The recipe. ``UsageError`` for a value that is wrong or means nothing beside others."""
        options, text = asdict(self.recipe), asdict(self.text)
        bits = options.pop("bits_per_weight")
        data = {
            **{name: value for name, value in options.items() if value is not None},
            "mixed": None if bits is None else {"bits_per_weight": bits},
            "calibration": {"source": text.pop("calibration"), **text},
        }
        try:
            recipe = RecipeSpec.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            message = problem_words(first)
            if first["loc"]:
                message = f"--{str(first['loc'][-1]).replace('_', '-')}: {message}"
            raise UsageError(message) from error
        if self.recipe.group_size is not None and recipe.scheme not in GROUPED:
            raise UsageError(
                f"--group-size has no meaning for {recipe.scheme}, whose groups are given",
                fix=f"leave it out, or choose --scheme {', '.join(GROUPED)}",
            )
        return recipe
