"""Error rates of the method by simulation: false differences, power, coverage.

    python -m benchmarks.method --out results/method [--runs 1000] [--only runs,bench,ci,gate]

Every interval and every verdict comes from the product's own functions. ``simulated_run`` draws
runs, ``method_bench`` a queue, ``method_ci`` two runs, ``method_gate`` answers and drafts.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import method_bench, method_ci, method_gate
from benchmarks.simulated_run import (
    DEFAULT,
    LIMIT_MS,
    Row,
    Server,
    SimulatedRun,
    server,
    server_at_rates,
)
from whet.core.load import Load
from whet.core.records.decision import Decision
from whet.metrics.pooled import StartTable
from whet.metrics.spread import unlike_variants

LOADS: Final = (Load.at(4), Load.at(16), Load.at(64))
NAMES: Final = (DEFAULT, "a", "b", "c")
SIGMAS: Final = (0.0, 0.02, 0.05, 0.10)
_NOISIER: Final = 5

Servers = Callable[[np.random.Generator, float], dict[str, Server]]


def own_loads(_: np.random.Generator, sigma: float) -> dict[str, Server]:
    """Equal costs, and each variant meets the limit at loads of its own."""
    latencies = {DEFAULT: (100, 900, 900), "a": (100, 200, 900), "b": (100, 200, 300)}
    return {
        name: server(LOADS, latencies.get(name, (900, 900, 300)), sigma=sigma) for name in NAMES
    }


def equal(_: np.random.Generator, sigma: float, *, last_ms: float = 300.0) -> dict[str, Server]:
    """Equal costs and latencies; the largest load's is ``last_ms``."""
    return {name: server(LOADS, (100, 200, last_ms), sigma=sigma) for name in NAMES}


def near_limit(rng: np.random.Generator, sigma: float) -> dict[str, Server]:
    """The largest load, which is the cheapest, is within 10% of the limit."""
    servers = equal(rng, sigma, last_ms=LIMIT_MS * rng.uniform(0.9, 1.1))
    for each in servers.values():
        each.tps = lambda load: 1000 * load.value**0.25
    return servers


def noisy_default(rng: np.random.Generator, sigma: float) -> dict[str, Server]:
    """The default's starts vary five times as much."""
    servers = equal(rng, sigma)
    servers[DEFAULT].sigma *= _NOISIER
    return servers


def ten_percent(_: np.random.Generator, sigma: float) -> dict[str, Server]:
    """Every variant but the default is 10% faster."""
    return {
        name: server(LOADS, (100, 200, 300), sigma=sigma, gain=0.1 * (name != DEFAULT))
        for name in NAMES
    }


def at_rates(rng: np.random.Generator, sigma: float, *, gain: float = 0.0) -> dict[str, Server]:
    """Servers that hold equal rates, each by a search of its own."""
    return {
        name: server_at_rates(rng, sigma=sigma, gain=gain * (name != DEFAULT)) for name in NAMES
    }


CASES: Final[dict[str, Servers]] = {
    "each at its own load": own_loads,
    "at one load": equal,
    "within 10% of the limit": near_limit,
    "the default 5 times noisier": noisy_default,
}


def decided(
    servers: Servers, sigma: float, starts: int, runs: int, *, demand_rps: float | None = None
) -> Iterator[tuple[SimulatedRun, Decision]]:
    """Runs with their decisions, confirmation included; one seed a run."""
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        run = SimulatedRun(
            rng=rng, servers=servers(rng, sigma), starts=starts, demand_rps=demand_rps
        )
        yield run, run.decided()


def false_differences(case: str, sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """Runs of equal variants in which anything is said to differ, or one is called cheaper."""
    wrong = named = 0
    for _, decision in decided(CASES[case], sigma, starts, runs):
        chosen = decision.recommendation
        cheaper = chosen is not None and chosen.cheaper
        wrong += cheaper or any(each.different for each in decision.differences)
        named += chosen is not None and chosen.variant != DEFAULT
    yield f"runs with a false difference, {case}", sigma, starts, wrong / runs, "at most 0.05"
    yield f"another than the default named, {case}", sigma, starts, named / runs, ""


def power(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """Runs that show variants 10% faster: by default, and with the advised starts where not."""
    shown = advised = 0
    spent = []
    for run, decision in decided(ten_percent, sigma, starts, runs):
        chosen = decision.recommendation
        spent.append(len(next(iter(run.fresh["tps_mean"].values()), ())))
        is_cheaper = chosen is not None and chosen.cheaper
        shown += is_cheaper
        advised += is_cheaper or _with_advice(run, decision)
    yield "10% faster: shown", sigma, starts, shown / runs, ""
    yield "10% faster: shown with the advised starts", sigma, starts, advised / runs, ""
    yield "10% faster: fresh starts of each", sigma, starts, float(np.mean(spent)), ""


def _with_advice(run: SimulatedRun, decision: Decision) -> bool:
    needed = [each.starts_needed for each in decision.differences if each.starts_needed]
    if not needed:
        return False
    more = SimulatedRun(
        rng=run.rng, servers=run.servers, starts=run.starts, most=max(needed[0], run.most)
    )
    chosen = more.decided().recommendation
    return chosen is not None and chosen.cheaper


def rates(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """Fleets: another than the default named where all hold one rate; intervals where 30% more."""
    demand = 200.0
    named = sum(
        decision.recommendation is not None and decision.recommendation.variant != DEFAULT
        for _, decision in decided(at_rates, sigma, starts, runs, demand_rps=demand)
    )
    yield "rates: another than the default named", sigma, starts, named / runs, "at most 0.05"
    count = held = 0
    more = lambda rng, spread: at_rates(rng, spread, gain=0.3)  # noqa: E731
    for _, decision in decided(more, sigma, starts, runs, demand_rps=demand):
        chosen = decision.recommendation
        if chosen is None or chosen.fleet is None or chosen.saving is None:
            continue
        count += 1
        truth = 1 - chosen.fleet.servers / math.ceil(demand / 10)
        low, high = chosen.saving.low, chosen.saving.high
        held += low is not None and high is not None and low - 1e-9 <= truth <= high + 1e-9
    yield "rates: 30% more held, shown", sigma, starts, count / runs, ""
    yield "rates: coverage of the saving", sigma, starts, held / max(1, count), "at least 0.93"


def coverage(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """How often 95% intervals hold the truth: a cell's, a ratio's, and a noisy variant's cell."""
    for noisier, what in ((1, "a cell"), (_NOISIER, "a cell of a variant 5 times noisier")):
        cell = ratio = named = 0
        for seed in range(runs):
            rng = np.random.default_rng(seed)
            servers = equal(rng, sigma)
            servers["a"].sigma *= noisier
            table = _first_starts(rng, servers, starts)
            place = "a", LOADS[1]
            rates_ = table.blocks[LOADS[1]].own("a")
            around = table.interval(place, math.exp(float(np.mean(rates_))))
            assert around is not None
            cell += around[0] <= 1000 <= around[1]
            two = table.difference((DEFAULT, LOADS[1]), place, family=0)
            assert two is not None
            assert two.ratio.low is not None
            assert two.ratio.high is not None
            ratio += two.ratio.low <= 1 <= two.ratio.high
            named += "a" in unlike_variants(table.pool)
        yield f"coverage of {what}", sigma, starts, cell / runs, "at least 0.93"
        yield f"coverage of its ratio, {what}", sigma, starts, ratio / runs, "at least 0.93"
        yield f"named as unlike, {what}", sigma, starts, named / runs, ""


def _first_starts(rng: np.random.Generator, servers: dict[str, Server], starts: int) -> StartTable:
    run = SimulatedRun(rng=rng, servers=servers, starts=starts)
    places = [(name, load) for name in servers for load in LOADS]
    for number in range(starts):
        run.measure(run.main, places, number)
    return StartTable.of("tps_mean", run.main["tps_mean"])


def winners(sigma: float, runs: int) -> Iterator[Row]:
    """How much cheaper than it is the cheapest of 25 equal cells of 2 starts looks."""
    rng = np.random.default_rng(0)
    selected = rng.normal(0, sigma, (runs, 25, 2)).mean(axis=2).min(axis=1)
    yield "bias of the selected cost", sigma, 2, math.expm1(selected.mean()), "none"


def of_runs(runs: int) -> Iterator[Row]:
    """Every row of whole runs and of their start tables."""
    for sigma in SIGMAS:
        for starts in (2, 3, 5):
            for case in CASES:
                yield from false_differences(case, sigma, starts, runs)
            yield from coverage(sigma, starts, 2 * runs)
        for starts in (2, 3):
            yield from rates(sigma, starts, runs)
        yield from power(sigma, 2, runs)
        yield from winners(sigma, 20 * runs)


PARTS: Final[dict[str, Callable[[int], Iterator[Row]]]] = {
    "runs": of_runs,
    "bench": method_bench.rows,
    "ci": method_ci.rows,
    "gate": method_gate.rows,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a CSV file for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/method"))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.only.split(","):
        with (options.out / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("figure", "sigma", "starts", "value", "bound"))
            for figure, at, count, value, bound in PARTS[part](options.runs):
                writer.writerow((figure, at, count, f"{value:.4f}", bound))
                file.flush()


if __name__ == "__main__":
    main()
