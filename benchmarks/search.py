"""The search of ``predict.search`` beside random search, replayed on a stored grid.

    python -m benchmarks.search --out results/foresight [--seeds 20]

The grid is the H100 campaign (results/h100-7b-testbed: 38 configurations at eight loads, one
start each). A search that asks for a cell gets its stored cost and pays its stored window, 30 s of
warm-up and reading, and once for each configuration 90 s of start. The costs that it sees have
noise within their stored intervals, by seed; the cell that it names is judged by the true ones.
Predictions come from the coefficients of an H200 with vLLM 0.33: nothing of this grid went into
them. The acceptance of a draft is taken for granted (K = 2: 2.4, 4: 3.4, 6: 4.1), of n-grams and
suffixes as 1.1.
Writes search.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from whet.predict.hardware import CUDA
from whet.predict.performance import (
    Draft,
    Limits,
    Request,
    StepModel,
    Work,
    calibration_of,
    head_work,
    simulate,
)
from whet.predict.search import Arm, Measured, Outcome, Visit, search

ROOT: Final = Path(__file__).parents[1]
GRID: Final = ROOT / "results" / "h100-7b-testbed" / "results.csv"
TTFT_MS: Final = 1000.0
_PRICE: Final = 2.95
_START_S: Final = 90.0
_CELL_S: Final = 30.0
_LINEAR: Final = 32 * (4096 * (4096 + 2048) + 4096 * 4096 + 3 * 4096 * 14336)
_BITS: Final = {"fp16": (16.0, "16bit"), "awq": (4.13, "W4A16"), "fp8": (8.0, "FP8")}
_LENGTH: Final = {2: 2.4, 4: 3.4, 6: 4.1}
_BUDGETS: Final = (0.1, 0.25)
_NEAR: Final = 0.03

Cells = dict[str, dict[int, dict[str, float]]]


def grid() -> Cells:
    """Stored figures by configuration and load."""
    cells: Cells = {}
    with GRID.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["cost_per_1m_tokens"]:
                keys = ("cost_per_1m_tokens", "cost_per_1m_tokens_low", "cost_per_1m_tokens_high")
                figures = {key: float(row[key] or row[keys[0]]) for key in keys}
                figures |= {"ttft": float(row["ttft_p95_ms"]), "s": float(row["window_s"])}
                cells.setdefault(row["config"], {})[int(row["batch_size"])] = figures
    return cells


def predicted(name: str, loads: list[int]) -> Arm:
    """An arm from the configuration's name alone."""
    words = re.split(r"[+.]", name)
    bits, scheme = _BITS.get(words[0], (8.0, "W8A8-INT8"))
    cached = "cache" in words
    work = Work(
        layers=32,
        devices=1,
        weight_bytes=_LINEAR * bits / 8,
        expert_bytes=0.0,
        expert_share=1.0,
        token_flops=2.0 * _LINEAR,
        head_bytes=4096 * 4096 * 2.0,
        kv_bytes=((131072.0 * (0.5 if "kv8" in words else 1), None),),
        state_bytes=0.0,
        pair_flops=4.0 * 4096 * 32,
        hidden_bytes=8192.0,
        scheme=scheme,
    )
    method = next((word for word in words if re.match("eagle|spec|ngram|suffix", word)), None)
    draft = None
    if method is not None:
        k = next((int(word[1:]) for word in words if re.fullmatch(r"k\d", word)), 4)
        helps = re.match("eagle|spec", method) is not None
        small = head_work(work) if "eagle" in method else None
        draft = Draft(tokens=k, length=_LENGTH[k] if helps else 1.1, work=small)
    gpu, coefficients = CUDA["H100 SXM"], calibration_of("H100 SXM").coefficients
    model = StepModel(work, gpu.sheet, coefficients, draft=draft)
    limits = Limits(
        batched_tokens=8192,
        max_seqs=256,
        kv_tokens=340_000 if not cached else 95_000,
        prefix_cache=cached,
        request_s=coefficients.request_s,
        message_s=coefficients.message_s,
        turns=coefficients.turns,
        front_share=0.25 if "tuned" in words else 1.0,
    )
    costs: dict[int, float] = {}
    met: dict[int, float] = {}
    for load in loads:
        count = max(3 * load, 16)
        requests = [Request(prompt=1152, output=128, shared=1024 if cached else 0)] * count
        result = simulate(requests, model, limits, in_flight=load)
        costs[load] = _PRICE / 3600 / (128 * count / result.seconds) * 1e6
        timed = result.requests[min(load, count // 2) :]
        if np.quantile([each.ttft_s for each in timed], 0.95) < TTFT_MS / 1e3:
            met[load] = costs[load]
    features = {f"weights {words[0]}", *(word for word in words[1:])}
    return Arm(name=name, features=frozenset(features), costs=met or costs, start_s=_START_S)


def replayed(cells: Cells, seed: int) -> Visit:
    """Measurements of the grid, with noise within the stored intervals."""
    rng = np.random.default_rng(seed)

    @contextmanager
    def visit(arm: Arm) -> Iterator[Callable[[int], Measured]]:
        starting = [_START_S]

        def measure(load: int) -> Measured:
            cell = cells[arm.name][load]
            low, high = cell["cost_per_1m_tokens_low"], cell["cost_per_1m_tokens_high"]
            width = math.log(high / low) / (2 * 1.96) if high > low else 0.0
            return Measured(
                cost=cell["cost_per_1m_tokens"] * math.exp(rng.normal(0, width)),
                met=cell["ttft"] < TTFT_MS,
                seconds=cell["s"] + _CELL_S + (starting.pop() if starting else 0.0),
            )

        yield measure

    return visit


def at_random(arms: Sequence[Arm], visit: Visit, budget_s: float, seed: int) -> Outcome:
    """Configurations in random order, each at all its loads, until the budget ends."""
    outcome, rng = Outcome(), np.random.default_rng(seed)
    for place in rng.permutation(len(arms)):
        with visit(arms[place]) as measure:
            for load in rng.permutation(sorted(arms[place].costs)):
                if outcome.seconds > budget_s:
                    return outcome
                result = measure(int(load))
                outcome.seconds += result.seconds
                outcome.cells.append((arms[place].name, int(load), result))
    return outcome


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "foresight")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    cells = grid()
    arms = [predicted(name, sorted(loads)) for name, loads in cells.items()]
    blind = [replace(arm, costs=dict.fromkeys(cells[arm.name], 1.0)) for arm in arms]
    every = [cell for loads in cells.values() for cell in loads.values()]
    whole_s = len(arms) * _START_S + sum(cell["s"] + _CELL_S for cell in every)
    truth = {
        (name, load): cell["cost_per_1m_tokens"]
        for name, loads in cells.items()
        for load, cell in loads.items()
        if cell["ttft"] < TTFT_MS
    }
    rows = []
    for share, seed in itertools.product(_BUDGETS, range(options.seeds)):
        budget_s = share * whole_s
        for how, result in (
            ("search", search(arms, replayed(cells, seed), budget_s=budget_s)),
            ("random", at_random(blind, replayed(cells, seed), budget_s, seed)),
        ):
            name, load, _ = result.best or ("", 0, None)
            rows.append(
                {
                    "how": how,
                    "budget": share,
                    "seed": seed,
                    "configuration": name,
                    "in_flight": load,
                    "above_best": truth.get((name, load), math.inf) / min(truth.values()) - 1,
                    "share_of_time": result.seconds / whole_s,
                    "cells": len(result.cells),
                    "stopped": result.stopped,
                }
            )
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "search.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()})
    for share, how in itertools.product(_BUDGETS, ("search", "random")):
        mine = [row for row in rows if (row["how"], row["budget"]) == (how, share)]
        above = np.array([row["above_best"] for row in mine])
        print(
            f"{how}, {share:.0%} of {whole_s:.0f} s: within 3% in {np.mean(above <= _NEAR):.0%}, "
            f"median {np.median(above):.1%} above, "
            f"{np.mean([row['share_of_time'] for row in mine]):.0%} of the time used"
        )


if __name__ == "__main__":
    main()
