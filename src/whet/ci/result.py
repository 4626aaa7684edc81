"""What ``whet ci`` compares, and what came out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from whet.core.load import Load
from whet.core.records.quality_checks import GateVerdict
from whet.core.records.summary import Estimate
from whet.core.run import Run

Group = Literal["evidence", "quality", "objective", "speed", "counters"]
ORDER: Final[tuple[GateVerdict, ...]] = ("fail", "unknown", "pass")
"""The worst first."""
Advice = Literal["beyond", "not distinguished", "within"]
"""Where the interval of an advisory figure is, compared with the allowance."""
Word = GateVerdict | Advice
WORDS: Final[tuple[Word, ...]] = (*ORDER, "beyond", "not distinguished", "within")
Role = Literal["primary", "required", "advisory"]
_HAS_FIGURES: Final = ("evidence", "quality", "not confirmed")
"""Kinds of exclusion that other checks judge."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check of a candidate run. ``unknown`` counts as not passed.

    ``change`` is candidate ÷ baseline with its 95% interval, where the check is a comparison. One
    check is ``primary``, the cost; ``advisory`` ones decide nothing.
    """

    group: Group
    name: str
    verdict: Word
    sentence: str
    change: Estimate | None = None
    role: Role = "required"


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something that differs between the two runs: information, not a verdict."""

    what: str
    baseline: str
    candidate: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CiResult:
    """Every check of one variant, and what changed between the runs."""

    candidate: str
    baseline: str
    variant: str
    max_regression: float
    checks: tuple[Check, ...]
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> GateVerdict:
        """The worst of the checks that decide."""
        return next(verdict for verdict in ORDER if self.counted(verdict))

    def counted(self, verdict: Word) -> tuple[Check, ...]:
        """The checks with this verdict."""
        return tuple(check for check in self.checks if check.verdict == verdict)

    @property
    def primary(self) -> Check | None:
        """The check of the cost; None where the candidate cannot run the variant."""
        return next((check for check in self.checks if check.role == "primary"), None)

    @property
    def cause(self) -> str | None:
        """The counters that are beyond the allowance, as a probable cause; None without one."""
        worse = [check for check in self.counted("beyond") if check.group == "counters"]
        words = "; ".join(f"{check.name} {check.sentence}" for check in worse)
        return f"Probable cause: {words}" if worse else None


@dataclass(frozen=True, kw_only=True)
class Sides:
    """One variant in two finished runs."""

    baseline: Run
    candidate: Run
    variant: str
    max_regression: float

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Where the baseline has figures and the candidate was measured, smallest first."""
        cells = (cell for cell in self.baseline.cells if cell.status == "complete")
        loads = (cell.load for cell in cells if cell.variant == self.variant)
        return tuple(x for x in loads if self.candidate.cell(self.variant, x) is not None)

    @cached_property
    def qualified(self) -> tuple[Load, ...]:
        """The loads at which the baseline's decision found the limits met."""
        decision = self.baseline.decision
        cells = decision.cells if decision else ()
        return tuple(
            cell.load
            for cell in cells
            if cell.variant == self.variant and cell.status in ("recommended", "qualifies")
        )

    @cached_property
    def load(self) -> Load | None:
        """The primary cell's load: the recommended one, else the cheapest that both runs measured.

        A load that did not qualify in the baseline is taken only where none did.
        """
        chosen = self.baseline.decision.recommendation if self.baseline.decision else None
        if chosen is not None and chosen.variant == self.variant:
            return chosen.load

        def order(load: Load) -> tuple[bool, float]:
            cell = self.baseline.cell(self.variant, load)
            cost = cell.cost_per_1m_tokens if cell else None
            return load not in self.qualified, math.inf if cost is None else cost.value

        return min(self.loads, key=order, default=None)

    @cached_property
    def other_machine(self) -> str | None:
        """Why speed is not compared, or None on the same kind of machine."""
        before, after = (machine_words(run) for run in (self.baseline, self.candidate))
        if before == after:
            return None
        return f"figures of two machines are not compared ({before}; {after})"

    def lost_cell(self, load: Load) -> Check | None:
        """The check of a load at which the candidate has no figures that count; else None."""
        decision = self.candidate.decision
        for item in decision.excluded if decision else ():
            place = item.variant, item.load
            if place == (self.variant, load) and item.kind not in _HAS_FIGURES:
                return Check(
                    group="speed",
                    name=f"figures, {load.words}",
                    verdict="fail" if self._is_broken(load) else "unknown",
                    sentence=item.reason,
                )
        return None

    def _is_broken(self, load: Load) -> bool:
        """Whether the candidate is at fault, and not a client or machine that could not measure."""
        cell = self.candidate.cell(self.variant, load)
        timed = self.candidate.degenerate.get(self.variant)
        trials = self.candidate.trials_of(self.variant, load)
        failed = not trials or any(trial.status == "failed" for trial in trials)
        garbled = timed is not None and timed.verdict == "fail"
        return failed or garbled or (cell is not None and cell.errors > 0)


def machine_words(run: Run) -> str:
    """The device and its host: equal words are the same kind of machine."""
    env = run.require_environment()
    host = "" if env.device.kind == "cpu" else f", {env.cpu} × {env.cpu_count}"
    count = "" if env.device.count == 1 else f"{env.device.count} × "
    return f"{count}{env.device.name}{host}"
