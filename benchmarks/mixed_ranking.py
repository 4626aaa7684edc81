"""Mixed precision: units ranked by output errors beside units ranked by the model's own loss.

    python -m benchmarks.mixed_ranking --out results/mixed-cpu

Quantizes the demo target to 4 bits once. Each unit is then quantized alone, and the loss and the
KL to 16 bit are measured on held-out text. The units that each ranking keeps in 16 bit within a
budget are evaluated on other held-out text. Writes units.csv and selections.csv.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from lab.inputs import write_inputs
from torch import Tensor
from torch.nn import functional

from whet.core.records import UnitError
from whet.core.spec import MixedSpec, QualitySpec, RecipeSpec
from whet.demo import pair_paths
from whet.quality import Encoder, heldout_ids
from whet.quality.prompts import Ids
from whet.quant import quantize
from whet.quant.layer import LayerQuantizer, QuantizedLayer, SourceLayer
from whet.quant.mixed import UnitCost, choose_units
from whet.quant.packing import unpack

_BITS: Final = 4.126  # 4 bits, and a 16-bit scale for 128 weights
_BUDGETS: Final = (5.0, 7.0)
_RANKING_DOCUMENTS: Final = 16
_DOCUMENTS: Final = 56


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Sums over the tokens of each document: [N]."""

    nll: np.ndarray
    kl: np.ndarray
    tokens: np.ndarray


class Model:
    """The source in float32; ``quantized`` has each unit's 4-bit weights, scales undone."""

    def __init__(self, source: Path, quantized: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load ``source``."""
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
        self._source = {name: each.clone() for name, each in self._model.state_dict().items()}
        self._quantized = quantized
        self._reference: dict[Ids, Tensor] = {}

    @torch.inference_mode()
    def measure(self, units: Collection[str], documents: Sequence[Ids]) -> Scores:
        """Loss and KL to the source with ``units`` quantized."""
        weights = dict(self._source)
        for unit in units:
            weights |= self._quantized[unit]
        rows = []
        for ids in documents:
            if ids not in self._reference:
                self._reference[ids] = self._log_probs(ids, self._source)
            reference, here = self._reference[ids], self._log_probs(ids, weights)
            kl = functional.kl_div(here, reference, reduction="sum", log_target=True)
            nll = functional.nll_loss(here, torch.tensor(ids[1:]), reduction="sum")
            rows.append((float(nll), float(kl), len(ids) - 1))
        nlls, kls, tokens = np.array(rows).T
        return Scores(nll=nlls, kl=kls, tokens=tokens)

    def _log_probs(self, ids: Ids, weights: Mapping[str, Tensor]) -> Tensor:
        self._model.load_state_dict(weights)
        logits = self._model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
        return functional.log_softmax(logits, dim=-1)


def quantized_units(
    source: Path, calibration: Path, seed: int, work: Path
) -> tuple[dict[str, dict[str, Tensor]], tuple[UnitError, ...]]:
    """The 4-bit weights of each unit by their names in ``source``, and the units' errors."""
    weights: dict[str, dict[str, Tensor]] = {}
    original = LayerQuantizer.quantize

    def record(self: LayerQuantizer, layer: SourceLayer) -> QuantizedLayer:
        result = original(self, layer)
        for unit in layer.units:
            weights[layer.full_name(unit.name)] = {
                f"{layer.prefix}{linear}.weight": result.scales[linear].undo(
                    unpack(_parts(result.tensors, linear), self.grid)
                )
                for linear in unit.linears
            }
        return result

    recipe = RecipeSpec.model_validate(
        {
            "method": "awq",
            "mixed": {"bits_per_weight": _BITS + 0.01},  # too little for any unit
            "calibration": {"samples": 64, "max_tokens": 256, "seed": seed},
        }
    )
    with mock.patch.object(LayerQuantizer, "quantize", record):
        checkpoint = quantize(source, work / "w4", recipe, calibration=calibration, device="cpu")
    return weights, checkpoint.units


def _parts(tensors: Mapping[str, Tensor], linear: str) -> dict[str, Tensor]:
    prefix = f"{linear}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def rankings(
    errors: Sequence[UnitError], alone: Mapping[str, Scores], reference: Scores
) -> dict[str, list[UnitCost]]:
    """Each unit's cost, in the layer error's place the value that the ranking goes by."""
    dice, tokens = random.Random(0), reference.tokens.sum()
    losses = {name: (each.nll - reference.nll).sum() / tokens for name, each in alone.items()}
    values: dict[str, Mapping[str, float]] = {
        "layer output": {each.unit: each.layer_error or 0.0 for each in errors},
        "own output": {each.unit: each.error for each in errors},
        "loss, one unit quantized": losses,
        "KL, one unit quantized": {n: each.kl.sum() / tokens for n, each in alone.items()},
        "random": {name: dice.random() for name in alone},
    }
    return {
        name: [
            UnitCost(
                error=replace(each, error=1.0, wide_error=0.0, layer_error=by_unit[each.unit]),
                bits=round(_BITS * each.weights),
                fallback_bits=16 * each.weights,
            )
            for each in errors
        ]
        for name, by_unit in values.items()
    }


def interval(differences: np.ndarray, tokens: np.ndarray) -> tuple[float, float, float]:
    """The mean over tokens and its 95% interval, by resampling the documents."""
    dice = np.random.default_rng(0)
    chosen = dice.integers(len(tokens), size=(2000, len(tokens)))
    means = differences[chosen].sum(axis=1) / tokens[chosen].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return differences.sum() / tokens.sum(), low, high


def selection_row(
    scores: Scores, reference: Scores, present: Scores, **values: Any
) -> dict[str, Any]:
    """One selection: its figures, and its differences from the present ranking's."""
    kl_more = interval(scores.kl - present.kl, scores.tokens)
    loss_more = interval(scores.nll - present.nll, scores.tokens)
    ratio = float(np.exp((scores.nll - reference.nll).sum() / scores.tokens.sum()))
    row = values | {"perplexity_ratio": ratio, "kl": scores.kl.sum() / scores.tokens.sum()}
    for name, (value, low, high) in (("kl_more", kl_more), ("loss_more", loss_more)):
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ``rows`` as CSV, numbers to six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        for row in rows:
            table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def unit_rows(
    errors: Sequence[UnitError], alone: Mapping[str, Scores], reference: Scores, seed: int
) -> list[dict[str, Any]]:
    """A row for each unit: its errors, and the loss and the KL with it alone quantized."""
    rows = []
    for each in errors:
        scores = alone[each.unit]
        loss, low, high = interval(scores.nll - reference.nll, scores.tokens)
        row = {"seed": seed, "unit": each.unit, "weights": each.weights}
        row |= {"own_output_error": each.error, "layer_error": each.layer_error}
        row |= {"loss_more": loss, "loss_more_low": low, "loss_more_high": high}
        rows.append(row | {"kl": scores.kl.sum() / scores.tokens.sum()})
    return rows


def compare(source: Path, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of units.csv and of selections.csv for one draw of the calibration text."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_inputs(folder, seed=seed)
        spec = QualitySpec(max_documents=_DOCUMENTS, max_tokens=512)
        documents = heldout_ids(folder / "heldout.jsonl", Encoder(source), spec)
        weights, errors = quantized_units(source, folder / "calibration.jsonl", seed, folder)
    model = Model(source, weights)
    ranking, others = documents[:_RANKING_DOCUMENTS], documents[_RANKING_DOCUMENTS:]
    reference = model.measure((), ranking)
    alone = {each.unit: model.measure((each.unit,), ranking) for each in errors}
    units, ranked = unit_rows(errors, alone, reference, seed), rankings(errors, alone, reference)
    reference, present = model.measure((), others), model.measure(weights, others)
    values: dict[str, Any] = {"seed": seed, "budget": _BITS, "ranking": "all in 4 bits", "wide": ""}
    rows = [selection_row(present, reference, present, **values)]
    for bits in _BUDGETS:
        for name, costs in ranked.items():
            wide = choose_units(costs, MixedSpec(bits_per_weight=bits))
            scores = model.measure(weights.keys() - wide, others)
            present = scores if name == "layer output" else present
            values = {"seed": seed, "budget": bits, "ranking": name, "wide": " ".join(sorted(wide))}
            rows.append(selection_row(scores, reference, present, **values))
    return units, rows


def main() -> None:
    """Quantize, rank, select, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    chosen = parser.parse_args()
    units, selections = [], []
    for seed in chosen.seeds:
        parts = compare(pair_paths()[0], seed)
        units += parts[0]
        selections += parts[1]
        write_table(chosen.out / "units.csv", units)
        write_table(chosen.out / "selections.csv", selections)


if __name__ == "__main__":
    main()
