"""Error rates of the method by simulation: false differences, coverage, and the winner's curse.

    python -m benchmarks.method --out results/method [--runs 1000]

Starts are drawn from the model of docs/method.md: six variants at three concurrencies, rounds that
drift by 2%, half of a start's effect common to its concurrencies, and 0.5% left of what one trial
varies. Every interval and every verdict comes from the product's own functions.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from whet.core.load import Load
from whet.core.records.evidence import Claim, Verdict
from whet.core.records.load import ClientHealth, RequestEvent, TrialRecord
from whet.core.records.quality import QualityRecord
from whet.core.records.summary import CellSummary, Estimate
from whet.core.spec import ObjectiveSpec
from whet.core.units import NS_PER_MS
from whet.decision import DecisionInputs, TierInputs, decide
from whet.metrics import CellContext, summarise
from whet.metrics.cost import cost_per_1m_tokens
from whet.metrics.pooled import StartTable

VARIANTS: Final = 6
SIZES: Final = (1, 8, 32)
SIGMAS: Final = (0.0, 0.02, 0.05, 0.10)
_CELLS: Final = 25
_FRESH: Final = 2
_SLOTS: Final = 32
_TTFT_MS, _TTFT_SPREAD = 100.0, 0.5

Row = tuple[str, float, int, float, str]


def drawn(rng: np.random.Generator, sigma: float, starts: int) -> StartTable:
    """One run of identical variants."""
    common = rng.normal(0, sigma * math.sqrt(0.5), (VARIANTS, starts))
    cells = {}
    for size in SIZES:
        logs = common + rng.normal(0, sigma * math.sqrt(0.5), (VARIANTS, starts))
        logs += rng.normal(0, 0.02, starts) + rng.normal(0, 0.005, (VARIANTS, starts))
        cells |= {
            (str(v), Load.at(size)): dict(enumerate(np.exp(row))) for v, row in enumerate(logs)
        }
    return StartTable.of("tps_mean", cells)


def false_differences(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """Per comparison alone, and per run with the family corrected."""
    alone = runs_with = 0
    for seed in range(runs):
        table = drawn(np.random.default_rng(seed), sigma, starts)
        tested = [
            table.difference(("0", Load.at(32)), (str(v), Load.at(32)), family=VARIANTS - 1)
            for v in range(1, VARIANTS)
        ]
        runs_with += any(each is not None and each.different for each in tested)
        one = table.difference(("0", Load.at(32)), ("1", Load.at(32)), family=1)
        alone += one is not None and one.different
    yield "false differences per comparison", sigma, starts, alone / runs, "at most 0.05"
    yield "runs with a false difference", sigma, starts, runs_with / runs, "at most 0.05"


def coverage(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """How often a 95% interval holds the truth, of one cell and of a ratio."""
    cell = ratio = 0
    for seed in range(runs):
        table = drawn(np.random.default_rng(seed), sigma, starts)
        rates = list(table.blocks[Load.at(8)].figures["0"].values())
        around = table.interval(("0", Load.at(8)), math.exp(np.log(rates).mean()))
        assert around is not None
        cell += around[0] <= 1 <= around[1]
        two = table.difference(("0", Load.at(8)), ("1", Load.at(8)), family=0)
        assert two is not None
        assert two.ratio.low is not None
        assert two.ratio.high is not None
        ratio += two.ratio.low <= 1 <= two.ratio.high
    yield "coverage of a cell's rate", sigma, starts, cell / runs, "0.93 to 0.98"
    yield "coverage of a ratio", sigma, starts, ratio / runs, "0.93 to 0.97"


def winners(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """The mean error of the cheapest of equal cells: as selected, and as confirmed."""
    rng = np.random.default_rng(0)
    selected = rng.normal(0, sigma, (runs, _CELLS, starts)).mean(axis=2).min(axis=1)
    confirmed = rng.normal(0, sigma, (runs, _FRESH)).mean(axis=1)
    yield "bias of the selected cost", sigma, starts, math.expm1(selected.mean()), "none"
    yield "bias of the confirmed cost", sigma, starts, math.expm1(confirmed.mean()), "within 0.005"


def recommendations(gain: float, sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """What ``decide`` makes of a default and three equal variants that are ``gain`` faster.

    The selection's starts and two fresh ones of the finalists, in rounds of their own.
    """
    named = certified = losses = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        main = _rates(rng, gain, sigma, starts)
        table = StartTable.of("tps_mean", main)
        fresh = _rates(rng, gain, sigma, _FRESH)
        sure = StartTable.of("tps_mean", fresh, more=table)
        chosen = decide(_inputs(main, table, fresh, sure)).recommendation
        assert chosen is not None
        costs = {name: 1 / _mean(rates) for (name, _), rates in fresh.items()}
        other = chosen.variant != "0"
        named += other
        certified += other and chosen.result == "certified"
        losses += other and costs[chosen.variant] >= costs["0"]
    what = "equal variants" if gain == 0 else f"variants {gain:.0%} faster"
    yield f"{what}: one is recommended that was not cheaper", sigma, starts, losses / runs, "0"
    yield f"{what}: another than the default is recommended", sigma, starts, named / runs, ""
    yield f"{what}: it is certified", sigma, starts, certified / runs, ""


def _rates(
    rng: np.random.Generator, gain: float, sigma: float, starts: int
) -> dict[tuple[str, Load], dict[int, float]]:
    """Rates of four variants at one load; the first is the default."""
    logs = rng.normal(0, math.hypot(sigma, 0.005), (4, starts)) + rng.normal(0, 0.02, starts)
    logs[1:] += math.log1p(gain)
    return {
        (str(v), Load.at(8)): dict(enumerate(np.exp(row).tolist())) for v, row in enumerate(logs)
    }


def _mean(rates: dict[int, float]) -> float:
    return math.exp(float(np.log(list(rates.values())).mean()))


def _inputs(
    main: dict[tuple[str, Load], dict[int, float]],
    table: StartTable,
    fresh: dict[tuple[str, Load], dict[int, float]],
    sure: StartTable,
) -> DecisionInputs:
    tier = TierInputs(
        tier="simulated",
        cells=[_cell(*place, rates, table) for place, rates in main.items()],
        quality={name: _passed(name) for name, _ in main},
        verdicts=[_proved(name) for name, _ in main],
        throughput=table,
        ttft=StartTable.of("ttft_p95_ms", {}),
        confirmation=[_cell(*place, rates, sure) for place, rates in fresh.items()],
        confirmed_throughput=sure,
    )
    return DecisionInputs(baseline="0", reference="0", tiers=[tier], objective=ObjectiveSpec())


def _cell(name: str, load: Load, rates: dict[int, float], table: StartTable) -> CellSummary:
    """A cell that meets the objective for certain, at a dollar an hour."""
    rate = _mean(rates)
    low, high = table.interval((name, load), rate) or (None, None)
    ttft = Estimate(value=100.0, low=90.0, high=110.0, samples=200)
    tps = Estimate(value=rate, low=low, high=high, samples=len(rates))
    return CellSummary(
        variant=name,
        load=load,
        status="complete",
        trials=len(rates),
        starts=len(rates),
        requests=200,
        errors=0,
        memory_kind="device",
        figures={
            "ttft_p95_ms": ttft,
            "tps_mean": tps,
            "cost_per_1m_tokens": cost_per_1m_tokens(tps, 1.0),
        },
    )


def _passed(name: str) -> QualityRecord:
    return QualityRecord(
        variant=name,
        baseline="0",
        perplexity=None,
        perplexity_ratio=None,
        nll=(),
        tasks=(),
        answers=(),
        examples=(),
        verdicts=tuple((tolerance, "pass") for tolerance in ObjectiveSpec().quality),
        reason=None,
        seconds=0.0,
    )


def _proved(name: str) -> Verdict:
    claim = Claim(kind="weights", statement="", expected="", per_cell=False)
    return Verdict(variant=name, load=None, claim=claim, outcome="proved", observed="", sources=())


def latency_bias(requests_per_slot: int, starts: int, runs: int) -> Iterator[Row]:
    """The mean error of TTFT p95 where the first wave waits five times as long."""
    rng = np.random.default_rng(0)
    truth = _TTFT_MS * math.exp(_TTFT_SPREAD * NormalDist().inv_cdf(0.95))
    errors = []
    for _ in range(runs):
        trials = [_closed_loop(rng, requests_per_slot, start) for start in range(starts)]
        cell = summarise(trials, cell=CellContext(price_usd_per_hour=1.0, memory_kind="device"))
        assert cell.ttft_p95_ms is not None
        errors.append(cell.ttft_p95_ms.value / truth - 1)
    name = f"bias of TTFT p95, {requests_per_slot} requests a slot"
    yield name, _TTFT_SPREAD, starts, float(np.mean(errors)), "within 0.05"


def _closed_loop(rng: np.random.Generator, requests_per_slot: int, start: int) -> TrialRecord:
    """A start whose slots send one request after the other: lognormal TTFT, then 20 tokens."""
    events = []
    for _ in range(_SLOTS):
        at_ms = 0.0
        for position in range(requests_per_slot):
            burst = 5 if position == 0 else 1
            ttft_ms = burst * _TTFT_MS * math.exp(rng.normal(0, _TTFT_SPREAD))
            chunks = tuple(round((at_ms + ttft_ms + 50 * i) * NS_PER_MS) for i in range(20))
            events.append((round(at_ms * NS_PER_MS), chunks))
            at_ms += ttft_ms + 1000
    requests = tuple(_event(index, *each) for index, each in enumerate(sorted(events)))
    return TrialRecord(
        variant="v",
        load=Load.at(_SLOTS),
        trial=start,
        start=start,
        status="complete",
        workload_sha256="",
        started_at="",
        window_start_ns=0,
        window_end_ns=max(event.ended_ns for event in requests),
        requests=requests,
        excluded_warmup=0,
        counters_before=None,
        counters_after=None,
        memory_bytes=None,
        health=ClientHealth(
            dispatch_delay_p99_ns=0, loop_lag_p99_ns=0, cpu_share=0.0, valid=True, reason=None
        ),
    )


def _event(index: int, sent_ns: int, chunks: tuple[int, ...]) -> RequestEvent:
    return RequestEvent(
        index=index,
        prefix_id=None,
        scheduled_ns=sent_ns,
        sent_ns=sent_ns,
        chunk_ns=chunks,
        ended_ns=chunks[-1],
        prompt_tokens=100,
        output_tokens=len(chunks),
        cached_tokens=None,
        finish_reason="length",
        text="",
    )


def main() -> None:
    """Write ``simulations.csv``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/method"))
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "simulations.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("figure", "sigma", "starts", "value", "bound"))
        for sigma in SIGMAS:
            for starts in (2, 3, 5):
                gains = (0.0, 0.1, 0.2) if starts < 5 else ()
                for rows in (
                    *(recommendations(g, sigma, starts, options.runs // 5) for g in gains),
                    false_differences(sigma, starts, options.runs),
                    coverage(sigma, starts, options.runs),
                    winners(sigma, starts, 20 * options.runs),
                ):
                    for figure, at, count, value, bound in rows:
                        writer.writerow((figure, at, count, f"{value:.4f}", bound))
        for per_slot in (8, 10, 30):
            for figure, at, count, value, bound in latency_bias(per_slot, 2, options.runs // 2):
                writer.writerow((figure, at, count, f"{value:.4f}", bound))


if __name__ == "__main__":
    main()
