"""Make docs/models.md again: which model families work, and how that was shown.

    python scripts/docs_models.py

Facts and plans come from the tests of tests/zoo, methods from what ``whet check`` says of its models, the
last two columns from results/. About ten seconds.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.checkpoint_factory import write_hollow  # noqa: E402
from tests.zoo.models import names, published_config, tensors, write_model  # noqa: E402
from tests.zoo.truth import TRUTH  # noqa: E402

from whet.core.spec import RecipeSpec  # noqa: E402
from whet.quant.families import FAMILIES  # noqa: E402
from whet.quant.suitability import recipe_problem, working_recipes  # noqa: E402

PAGE: Final = ROOT / "docs" / "models.md"
_INTRO: Final = """<!-- Made by scripts/docs_models.py. Do not edit. -->

# Models

Which families of models whet reads, plans and quantizes, and how that was shown. A family is the `model_type` of
config.json. `whet check` says the same of your own model before anything starts.

| column | meaning | from |
|---|---|---|
| models | published models with true configs, names and shapes, without data; one is named | `tests/zoo` |
| facts, plan | parameters, bytes, KV cache and memory plan are right for so many of them | `tests/zoo/test_zoo.py` |
| vLLM's pool | planned and logged KV pool of published shapes with dummy weights | [memory.csv](../results/models-h100) |
| read as stored | quantized forms among them; such a model is measured as it is | `tests/zoo` |
| quantized by | what `whet check` takes a 16-bit model for, in groups of 128 unless stated | their headers |
| H100, CPU | 4-bit weights in vLLM: difference of log-probabilities, of rounding's own | results, below |

GPTQ implies round to nearest (`rtn`). "copy" is a published FP8 model's shape in 16 bit. "map" means that no 16-bit
model of the family is in the zoo: its layers are known by the map alone. Headers show that a recipe fits the
architecture, not how good its answers are: the quality gate shows that.

`python -m benchmarks.tiny_models_engine` quantizes a tiny random model of the architecture (AWQ, W4A16), runs it in
vLLM and compares its log-probabilities with transformers' on the dequantized weights. `0.039 of 0.99` are the RMS
difference in nats and the difference that rounding to 4 bits makes. It passes up to a quarter of that, if
permuted scales do not. "no figure" is explained beside the CSV: [H100](../results/models-h100),
[CPU](../results/models-cpu).
"""
_REFUSALS: Final = (
    (r"holds all experts of a layer", "refused: experts in one tensor"),
    (r"has no decoder layers", "refused: its layers have other names"),
)
_TITLES: Final = ("Dense models", "Vision towers", "Mixtures of experts", "States and attention")
_VISION: Final = ("vision_config", "visual")
_SCALES: Final = ("_scale_inv", "_scale")
_SHOWN: Final = 2


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
        configs = [published_config(name) for name in self.models]
        rows = self.logprobs.values()
        if any(truth.state for truth in truths):
            return "States and attention"
        if any(truth.idle for truth in truths) or any(row["mixture"] == "True" for row in rows):
            return "Mixtures of experts"
        if any(key in config for config in configs for key in _VISION):
            return "Vision towers"
        return "Dense models"


def page() -> str:
    """Return docs/models.md."""
    families = _families()
    parts = [_INTRO]
    header = (
        "| family | models | facts, plan | vLLM's pool, GiB | read as stored | quantized by | H100 | CPU |\n"
        "|---|---|--:|---|---|---|--:|--:|\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for title in _TITLES:
            rows = [_row(each, Path(folder)) for each in families if each.title == title]
            parts.append(f"## {title}\n\n{header}" + "".join(rows))
    return "\n".join(parts)


def _families() -> list[Family]:
    families: dict[str, Family] = {}

    def family(model_type: str) -> Family:
        return families.setdefault(model_type, Family(model_type=model_type))

    for name in names():
        family(str(published_config(name)["model_type"])).models.append(name)
    for row in _csv("models-h100/memory.csv"):
        family(str(published_config(row["model"])["model_type"])).pools.append(row)
    for device in ("h100", "cpu"):
        for row in _csv(f"models-{device}/logprobs.csv"):
            family(row["model_type"]).logprobs[device] = row
    return [families[name] for name in sorted(families)]


def _csv(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _row(family: Family, folder: Path) -> str:
    own = [name for name in family.models if TRUTH[name].scheme == "16bit"]
    schemes = sorted({TRUTH[name].scheme for name in family.models} - {"16bit"})
    cells = [
        f"`{family.model_type}`",
        (own or family.models or [""])[0],
        str(len(family.models) or ""),
        ", ".join(_pool(row) for row in family.pools if not row["problem"]),
        ", ".join(schemes),
        _methods(family, own, folder),
        *(_difference(family.logprobs.get(device)) for device in ("h100", "cpu")),
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


def _methods(family: Family, own: Sequence[str], folder: Path) -> str:
    """What ``whet check`` says of the family's 16-bit models."""
    if own:
        folders = [write_model(name, folder / name) for name in own]
        return _unique(_methods_of(each) for each in folders)
    if family.models:
        return f"{_methods_of(_sixteen_bit_copy(family.models[0], folder))} (copy)"
    return "AWQ, GPTQ, FP8 (map)" if family.model_type in FAMILIES else ""


def _unique(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _sixteen_bit_copy(name: str, folder: Path) -> Path:
    """The shapes of a published FP8 model in 16 bit."""
    config: dict[str, Any] = published_config(name)
    config.pop("quantization_config")
    shapes = {
        tensor: ("BF16", shape)
        for tensor, (_, shape) in tensors(name).items()
        if not tensor.endswith(_SCALES)
    }
    return write_hollow(folder / name, config, shapes)


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
