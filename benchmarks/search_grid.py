"""Stored grids as something to search in: configurations, their measured cells, a situation."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from whet.core.load import Load
from whet.core.provenance import Device
from whet.core.records.model import ModelFacts, StoredWeights, TokenizerIdentity
from whet.core.spec import RecipeSpec
from whet.flow.run.search.changes import Value
from whet.flow.run.search.values import key_of
from whet.flow.run.situation import Head, Situation, TrafficShape

_GRAPHS: Final = "compilation_config"
ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "results" / "search"
_LOADS: Final = ("in_flight", "batch_size")
_RATES: Final = ("requests_per_s", "rps_mean")
_LATENCIES: Final = ("ttft_p95_ms", "tpot_p50_ms")
_KV_BYTES: Final = 131072
"""Per token, of the 7B shape."""
_TRAFFIC: Final = TrafficShape(
    prompt_tokens=1129,
    answer_tokens=79,
    longest=1260,
    hit_rate=0.9,
    copied=0.4,  # not stored; so that copying from the prompt is among what may be tried
    greedy=1.0,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A measured cell: cost per request in units of the default's at its cheapest, latencies."""

    cost: float
    latencies: Mapping[str, float]
    accepted_tokens: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A grid and an objective. ``values`` and ``cells`` are by configuration, the default first.

    Cells are those at loads that the objective allows; ``limits`` are latencies in milliseconds.
    """

    grid: str
    objective: str
    held_out: bool
    situation: Situation
    values: Mapping[str, Value]
    cells: Mapping[str, Mapping[Load, Cell]]
    limits: Mapping[str, float]

    @property
    def points(self) -> tuple[Load, ...]:
        """Every load, the smallest first."""
        return tuple(sorted({load for cells in self.cells.values() for load in cells}))

    def name_of(self, value: Value) -> str | None:
        """The configuration of the grid that is ``value``; None where it was not measured.

        The grids' rows with drafts name no graphs: whether they had them for long steps is theirs.
        """
        if "speculation" in value:
            args = {key: item for key, item in value.get("args", {}).items() if key != _GRAPHS}
            value = {**value, "args": args}
        wanted = key_of(value)
        return next((name for name, own in self.values.items() if key_of(own) == wanted), None)

    def regret(self, name: str, load: Load) -> float:
        """Stored cost over the cheapest cell within the limits, less one; infinite outside."""
        cell = self.cells[name][load]
        best = min(
            each.cost
            for cells in self.cells.values()
            for each in cells.values()
            if self.meets(each)
        )
        return cell.cost / best - 1 if self.meets(cell) else math.inf

    def missed_by(self, cell: Cell) -> list[str]:
        """The latencies of a cell above their limits."""
        return [name for name, limit in self.limits.items() if cell.latencies[name] > limit]

    def meets(self, cell: Cell) -> bool:
        """Whether a cell is within the limits."""
        return not self.missed_by(cell)


def problems() -> Iterator[Problem]:
    """Yield every objective of every grid of ``results/search/grids.yaml``."""
    for grid in yaml.safe_load((FOLDER / "grids.yaml").read_text(encoding="utf-8")):
        cells = _cells(grid)
        values = grid["configurations"]
        order = sorted(values, key=lambda name: name != grid["default"])
        for objective, limits in grid["objectives"].items():
            most = limits.get("in_flight", math.inf)
            allowed = {
                name: {load: cell for load, cell in cells[name].items() if load.value <= most}
                for name in order
            }
            measured = [name for name in order if allowed[name]]
            loads = [load.value for name in measured for load in allowed[name]]
            yield Problem(
                grid=grid["name"],
                objective=objective,
                held_out=grid.get("held_out", False),
                situation=_situation(grid, int(max(loads))),
                values={name: values[name] for name in measured},
                cells={name: allowed[name] for name in measured},
                limits={name: limit for name, limit in limits.items() if name != "in_flight"},
            )


def _cells(grid: Mapping[str, Any]) -> dict[str, dict[Load, Cell]]:
    """Cells by configuration; those of several sittings are geometric means over their starts."""
    with (ROOT / grid["rows"]).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if grid.get("only", {}).items() <= row.items()]
    sitting = grid.get("sitting", "")
    load_key, rate_key = (
        next(name for name in names if name in rows[0]) for names in (_LOADS, _RATES)
    )
    default: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["config"] == grid["default"]:
            default.setdefault(row[load_key], {})[row.get(sitting, "")] = float(row[rate_key])
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        if row["config"] in grid["configurations"] and row[rate_key]:
            groups.setdefault((row["config"], row[load_key]), []).append(row)
    cells: dict[str, dict[Load, Cell]] = {name: {} for name in grid["configurations"]}
    for (name, load), same in groups.items():
        usual = default[load]
        weights = [int(row.get("starts") or 1) for row in same]
        times = [float(row[rate_key]) / usual[row.get(sitting, "")] for row in same]
        lengths = [float(row["acceptance_length"]) for row in same if row["acceptance_length"]]
        cells[name][Load.at(int(load))] = Cell(
            cost=1 / (_mean(times, weights) * statistics.geometric_mean(usual.values())),
            latencies={
                key: _mean([float(row[key]) for row in same], weights) for key in _LATENCIES
            },
            accepted_tokens=statistics.mean(lengths) - 1 if lengths else None,
        )
    return cells


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    logs = (weight * math.log(value) for value, weight in zip(values, weights, strict=True))
    return math.exp(sum(logs) / sum(weights))


def _situation(grid: Mapping[str, Any], in_flight: int) -> Situation:
    card = grid["card"]
    capability = card.get("capability")
    heads = [
        Head(ref=ref, method="eagle3", num_tokens=None, source="search.heads", options={})
        for ref in grid.get("heads", ())
    ]
    return Situation(
        target=_target(grid.get("stored", "16bit"), grid.get("experts")),
        device=Device(
            kind="cuda" if capability else "cpu",
            name=card["name"],
            memory_bytes=card["memory_gb"] * 10**9,
            count=card.get("count", 1),
            driver=None,
        ),
        capability=None if capability is None else tuple(capability),
        engine="vllm",
        version=(0, 33, 0),
        recipes={name: RecipeSpec() for name in grid.get("recipes", ())},
        heads=tuple(heads),
        checkpoints=(),
        traffic=_TRAFFIC,
        in_flight=in_flight,
        draft=grid.get("draft", False),
        nvcc=True,
        unmeasured_card=False,
    )


def _target(scheme: str, experts: int | None) -> ModelFacts:
    """Facts of the testbed's 7B shape; those that no move asks for are empty."""
    stored = StoredWeights(
        scheme=scheme,
        dtype="bfloat16",
        group_size=None,
        bits_per_weight=16,
        quantized_modules=0,
        unquantized_modules=224,
    )
    tokenizer = TokenizerIdentity(
        vocab_size=4096, sha256="", chat_template_sha256=None, bos_token_id=None, eos_token_ids=()
    )
    return ModelFacts(
        path="",
        architecture="LlamaForCausalLM",
        parameters=7 * 10**9,
        weight_bytes=14 * 10**9,
        hidden_size=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate_size=11008,
        vocab_size=4096,
        max_position=2048,
        tied_embeddings=False,
        kv_bytes_per_token=_KV_BYTES,
        stored=stored,
        tokenizer=tokenizer,
        weights_sha256="",
        experts=experts,
    )
