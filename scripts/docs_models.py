"""Make the tables of docs/models.md again: which model families work, and how that was shown.

    python scripts/docs_models.py

Recipes are those that ``whet check`` accepts for the models of tests/zoo, whose tests check facts
and plans. Figures of engines come from results/.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.checkpoint_factory import write_hollow  # noqa: E402
from tests.zoo.models import names, published_config, tensors  # noqa: E402
from tests.zoo.truth import TRUTH  # noqa: E402

from whet.core.spec import RecipeSpec  # noqa: E402
from whet.quant.families import FAMILIES  # noqa: E402
from whet.quant.suitability import recipe_problem, working_recipes  # noqa: E402

PAGE: Final = ROOT / "docs" / "models.md"
_BEGIN: Final = "<!-- made by scripts/docs_models.py -->\n"
_REFUSALS: Final = (
    (r"holds all experts of a layer", "refused: experts in one tensor"),
    (r"has no decoder layers", "refused: its layers have other names"),
)
_DENSE, _VISION, _MIXTURES, _STATES = (
    "Dense models",
    "Models with a vision tower",
    "Mixtures of experts",
    "Mamba and linear attention",
)
_TOWER: Final = re.compile("vision|visual")
_EXAMPLES: Final = 2
_GPUS: Final = ("models-h100", "models-h200")
_CPU: Final = "models-cpu"


@dataclass(kw_only=True, slots=True)
class Family:
    """One row: a ``model_type``, its models in the zoo, and its figures from results/."""

    model_type: str
    models: list[str] = field(default_factory=list)
    pools: list[Mapping[str, str]] = field(default_factory=list)
    logprobs: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The table in which the family is."""
        truths = [TRUTH[name] for name in self.models]
        rows = self.logprobs.values()
        if any(truth.state for truth in truths):
            return _STATES
        if any(truth.idle for truth in truths) or any(row["mixture"] == "True" for row in rows):
            return _MIXTURES
        towers = any(_TOWER.search(tensor) for name in self.models for tensor in tensors(name))
        return _VISION if towers else _DENSE

    @property
    def sixteen_bit(self) -> list[str]:
        """Its 16-bit models, those named after the family first."""
        start = self.model_type[:4]
        own = [name for name in self.models if TRUTH[name].scheme == "16bit"]
        return sorted(own, key=lambda name: not name.lower().startswith(start))


def page() -> str:
    """Return docs/models.md: its own text, and the tables of today."""
    families = _families()
    columns = ("family", "for example", "facts, plan", "pool", "as stored", "quantized by")
    header = f"| {' | '.join((*columns, 'GPU', 'CPU'))} |\n|---|---|--:|---|---|---|--:|--:|\n"
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for title in (_DENSE, _VISION, _MIXTURES, _STATES):
            rows = [_row(each, Path(folder)) for each in families if each.title == title]
            parts.append(f"## {title}\n\n{header}" + "".join(rows))
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return "\n".join([f"{before}{mark}", *parts])


def _families() -> list[Family]:
    families: dict[str, Family] = {}

    def family(model_type: str) -> Family:
        return families.setdefault(model_type, Family(model_type=model_type))

    for name in names():
        family(str(published_config(name)["model_type"])).models.append(name)
    for folder in _GPUS:
        for row in _csv(f"{folder}/memory.csv"):
            family(str(published_config(row["model"])["model_type"])).pools.append(row)
    for folder in (*_GPUS, _CPU):  # a later folder repeats what failed in an earlier one
        for row in _csv(f"{folder}/logprobs.csv"):
            if row["method"] == "awq":
                device = _CPU if folder == _CPU else _GPUS[0]
                family(row["model_type"]).logprobs[device] = row
    return [families[name] for name in sorted(families)]


def _csv(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _row(family: Family, folder: Path) -> str:
    examples = family.sixteen_bit or family.models
    schemes = sorted({TRUTH[name].scheme for name in family.models} - {"16bit"})
    cells = [
        f"`{family.model_type}`",
        ", ".join(examples[:_EXAMPLES]),
        str(len(family.models) or ""),
        ", ".join(_pool(row) for row in family.pools if not row["problem"]),
        ", ".join(schemes),
        _methods(family, folder),
        *(_difference(family.logprobs.get(device)) for device in (_GPUS[0], _CPU)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _pool(row: Mapping[str, str]) -> str:
    return f"{float(row['planned_pool_gib']):.1f}, {float(row['pool_gib']):.1f}"


def _difference(row: Mapping[str, str] | None) -> str:
    """The difference in the engine, or why there is no figure."""
    if row is None:
        return ""
    if row["problem"]:
        return "no figure"
    text = f"{float(row['difference']):.3f} of {float(row['rounding']):.2f}"
    return text if row["passes"] == row["detected"] == "True" else f"fails: {text}"


def _methods(family: Family, folder: Path) -> str:
    """What ``whet check`` says of the family's 16-bit models."""
    texts = [
        _methods_of(_sixteen_bit_copy(name, folder))
        for name in family.sixteen_bit or family.models[:1]
        if TRUTH[name].scheme in ("16bit", "FP8_BLOCK")  # others are not copied
    ]
    if texts:
        return "; ".join(dict.fromkeys(texts)) + ("" if family.sixteen_bit else " (copy)")
    return "AWQ, GPTQ, FP8 (map)" if family.model_type in FAMILIES else ""


def _sixteen_bit_copy(name: str, folder: Path) -> Path:
    """A published model with its weights in 16 bit."""
    config: dict[str, Any] = published_config(name)
    config.pop("quantization_config", None)
    shapes = {
        tensor: ("BF16", shape)
        for tensor, (_, shape) in tensors(name).items()
        if not tensor.endswith("_scale_inv")
    }
    return write_hollow(folder, config, shapes)


def _methods_of(checkpoint: Path) -> str:
    """``AWQ, GPTQ, FP8``, or why nothing can be made."""
    fp8 = RecipeSpec.model_validate({"method": "rtn", "scheme": "FP8_DYNAMIC"})
    if (problem := recipe_problem(checkpoint, fp8)) is not None:
        return next(text for pattern, text in _REFUSALS if re.search(pattern, problem))
    groups: dict[str, int] = {}
    for method in ("awq", "gptq"):
        recipe = RecipeSpec.model_validate({"method": method})
        for other in working_recipes(checkpoint, recipe):
            if other.scheme == recipe.scheme:
                groups.setdefault(other.method, other.group_size)
    if "gptq" in groups:
        groups.pop("rtn", None)
    size = next(iter(groups.values()))
    text = ", ".join("rtn" if method == "rtn" else method.upper() for method in groups)
    return f"{text}{'' if size == 128 else f' in groups of {size}'}, FP8"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
