"""Runs of simulated servers, decided by the product's own functions, confirmation included.

A start of a server has an effect on all loads and one on each, of ``sigma`` together. A round has
traffic of its own for each load, which all its variants share. What one trial varies is 1%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from benchmarks.gate_coverage import BASELINE
from whet.core.load import Load
from whet.core.records.decision import Decision
from whet.core.records.evidence import Claim, Verdict
from whet.core.records.quality import QualityRecord
from whet.core.records.summary import CellSummary, Estimate
from whet.core.spec import ObjectiveSpec
from whet.decision import DecisionInputs, TierInputs, decide
from whet.decision.choice import TierChoices
from whet.decision.eligible import split_eligible
from whet.metrics.measured import cost_per_1m_tokens
from whet.metrics.pooled import Cell, StartTable
from whet.metrics.significance import looks_at

LIMIT_MS: Final = 500.0
DEFAULT: Final = "default"
_TRAFFIC: Final = {"tps_mean": 0.02, "ttft_p95_ms": 0.08}
_TRIAL: Final = {"tps_mean": 0.01, "ttft_p95_ms": 0.025}
Figures = dict[str, dict[Cell, dict[int, float]]]
Row = tuple[str, float, int, float, str]
"""What was simulated, the spread of a start, starts, the share or figure, and its bound."""


@dataclass(kw_only=True)
class Server:
    """A variant: the loads it is measured at, its true figures, and how much its starts vary."""

    loads: Sequence[Load]
    tps: Callable[[Load], float]
    ttft_ms: Callable[[Load], float]
    sigma: float


@dataclass(kw_only=True)
class SimulatedRun:
    """Servers by name, ``DEFAULT`` among them; ``starts`` first rounds, then the confirmation's."""

    rng: np.random.Generator
    servers: Mapping[str, Server]
    starts: int
    most: int = 10
    demand_rps: float | None = None
    main: Figures = field(default_factory=lambda: {"tps_mean": {}, "ttft_p95_ms": {}})
    fresh: Figures = field(default_factory=lambda: {"tps_mean": {}, "ttft_p95_ms": {}})

    def decided(self) -> Decision:
        """Measure, confirm as a run does, and decide."""
        for number in range(self.starts):
            places = [(name, load) for name, each in self.servers.items() for load in each.loads]
            self.measure(self.main, places, number)
        for attempt in range(3):
            places = self.choices().main.places
            if len(places) < 2 and attempt == 0:
                break
            first, done = self.starts + attempt * self.most, 0
            for count in looks_at(self.most):
                for number in range(first + done, first + count):
                    self.measure(self.fresh, places, number)
                done = count
                choices = self.choices()
                if not choices.main.settled or choices.is_over(self.most):
                    break
            if self.choices().main.settled:
                break
        return decide(self.inputs())

    def measure(self, into: Figures, places: Sequence[Cell], number: int) -> None:
        """One round: a start of each server, and traffic that its servers share at each load."""
        loads = {load for _, load in places}
        for metric, figures in into.items():
            traffic = {load: self.rng.normal(0, _TRAFFIC[metric]) for load in loads}
            common = {name: self.rng.normal(0, math.sqrt(0.5)) for name, _ in places}
            for name, load in places:
                server = self.servers[name]
                own = common[name] + self.rng.normal(0, math.sqrt(0.5))
                noise = traffic[load] + server.sigma * own + self.rng.normal(0, _TRIAL[metric])
                truth = server.tps if metric == "tps_mean" else server.ttft_ms
                figures.setdefault((name, load), {})[number] = truth(load) * math.exp(noise)

    def choices(self) -> TierChoices:
        """What the run may choose by now."""
        inputs = self.inputs()
        eligible, _ = split_eligible(inputs.tiers[0])
        return TierChoices(eligible=eligible, tier=inputs.tiers[0], inputs=inputs)

    def inputs(self) -> DecisionInputs:
        """The stored figures as a run hands them to the decision."""
        tables = {name: StartTable.of(name, cells) for name, cells in self.main.items()}
        fresh = {
            name: StartTable.of(name, cells, more=tables[name])
            for name, cells in self.fresh.items()
            if cells
        }
        tier = TierInputs(
            tier="simulated",
            cells=[self._cell(place, self.main, tables) for place in self.main["tps_mean"]],
            quality={name: _passed(name) for name in self.servers},
            verdicts=[_proved(name) for name in self.servers],
            tables=tables,
            confirmation=[self._cell(place, self.fresh, fresh) for place in self.fresh["tps_mean"]],
            fresh=fresh,
            looks=len(looks_at(self.most)),
            price_usd_per_hour=1.0,
            demand_rps=self.demand_rps,
        )
        objective = ObjectiveSpec(ttft_ms=(LIMIT_MS,), recommend_ttft_ms=LIMIT_MS)
        return DecisionInputs(
            baseline=DEFAULT, reference=DEFAULT, tiers=[tier], objective=objective
        )

    def _cell(self, place: Cell, figures: Figures, tables: Mapping[str, StartTable]) -> CellSummary:
        tps, ttft = (_pooled(tables[name], place, each[place]) for name, each in figures.items())
        starts = len(figures["tps_mean"][place])
        return CellSummary(
            variant=place[0],
            load=place[1],
            status="complete",
            trials=starts,
            starts=starts,
            requests=200 * starts,
            errors=0,
            memory_kind="device",
            figures={
                "ttft_p95_ms": ttft,
                "tps_mean": tps,
                "cost_per_1m_tokens": cost_per_1m_tokens(tps, 1.0),
            },
        )


def _pooled(table: StartTable, place: Cell, values: Mapping[int, float]) -> Estimate:
    value = math.exp(float(np.log(list(values.values())).mean()))
    low, high = table.interval(place, value) or (None, None)
    return Estimate(value=value, low=low, high=high, samples=200 * len(values))


def server(
    loads: Sequence[Load], ttft_ms: Sequence[float], *, sigma: float, gain: float = 0.0
) -> Server:
    """A server of 1,000 tokens a second at every load, or ``gain`` more, as a share."""
    latencies = dict(zip(loads, ttft_ms, strict=True))
    return Server(
        loads=loads,
        tps=lambda _: 1000.0 * (1 + gain),
        ttft_ms=latencies.__getitem__,
        sigma=sigma,
    )


def server_at_rates(rng: np.random.Generator, *, sigma: float, gain: float = 0.0) -> Server:
    """A server that holds 10 requests a second within the limit, or ``gain`` more, as a share.

    Measured at 80, 90 and 100% of the rate that a search on one start of it finds in steps of 10%.
    """
    capacity = 12.5 * (1 + gain)

    def ttft_ms(load: Load) -> float:
        return 100 / max(0.02, 1 - load.value / capacity)

    start, rate = sigma * rng.normal(), 1.0
    while ttft_ms(Load.rate(rate * 1.1)) * math.exp(start + rng.normal(0, 0.08)) < LIMIT_MS:
        rate *= 1.1
    return Server(
        loads=[Load.rate(float(f"{rate * share:.3g}")) for share in (0.8, 0.9, 1.0)],
        tps=lambda load: 100 * load.value,
        ttft_ms=ttft_ms,
        sigma=sigma,
    )


def _passed(name: str) -> QualityRecord:
    passed = tuple((tolerance, "pass") for tolerance in ObjectiveSpec().quality)
    return replace(BASELINE, variant=name, baseline=DEFAULT, verdicts=passed)


def _proved(name: str) -> Verdict:
    claim = Claim(kind="weights", statement="", expected="", per_cell=False)
    return Verdict(variant=name, load=None, claim=claim, outcome="proved", observed="", sources=())
