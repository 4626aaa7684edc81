"""What to deploy at one point: the cheapest that qualifies, or the default it does not beat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from whet.core.format import percent, plural
from whet.core.load import Load
from whet.core.records.summary import Difference, Estimate
from whet.decision import words
from whet.decision.eligible import (
    DecisionInputs,
    EligibleCell,
    TierInputs,
    split_eligible,
)
from whet.decision.matrix import (
    SloPoint,
    best_per_variant,
    may_qualify,
    meets,
    qualifying,
    recommended_point,
    slo_points,
    unmet,
)
from whet.metrics.pooled import Cell

_TIE_STARTS: Final = 10
"""A difference that takes more starts than this to show is a tie for whoever deploys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """The cheapest cell at a point by the first starts, and what measuring again has shown.

    ``item`` is the cheapest that missed no limit when measured again, ``usual`` the reference's
    that its cost is compared with: its cheapest that does not miss a limit for sure, at no larger
    concurrency (luck alone puts one of two like cells at the edge above a limit); at rates its
    cheapest. ``again`` holds cells by place with their new figures, ``missed`` those that dropped
    out and why.
    """

    item: EligibleCell | None
    usual: EligibleCell | None
    reference: str
    again: Mapping[Cell, EligibleCell]
    missed: Mapping[Cell, str]

    @property
    def places(self) -> tuple[Cell, ...]:
        """The cells to measure again. At rates the reference is sent the cheapest cell's rate."""
        if self.item is None:
            return ()
        if self.item.cell.variant == self.reference:
            return (self.item.place,)
        if self.item.fleet is not None:
            return self.item.place, (self.reference, self.item.cell.load)
        return self.item.place, *(() if self.usual is None else (self.usual.place,))

    @property
    def settled(self) -> bool:
        """Whether every place was measured again."""
        return all(place in self.again or place in self.missed for place in self.places)

    def newest(self, item: EligibleCell) -> EligibleCell:
        """The cell with the figures that count: fresh ones wherever there are any."""
        return self.again.get(item.place, item)


def confirmation(
    eligible: Sequence[EligibleCell], tier: TierInputs, point: SloPoint, reference: str
) -> Confirmation:
    """Hold what was measured again to the same limits. A cell that misses one there is left out."""
    again, dropped = split_eligible(tier, again=True)
    fresh = {item.place: item for item in again}
    missed = {(item.variant, item.load): item.reason for item in dropped if item.load is not None}
    for item in again:
        if item.unfit is None and (names := unmet(item, point)):
            missed[item.place] = f"it misses {', '.join(names)}"
    own = [item for item in eligible if item.tier == tier.tier]
    left = [item for item in own if item.place not in missed]
    first = next(iter(qualifying(left, point)), None)
    usual = None
    if first is not None:
        candidates = [item for item in own if item.cell.variant == reference]
        at_most = None if first.fleet else first.cell.load
        usual = cheapest_in_doubt(candidates, fresh, point, at_most=at_most)
    return Confirmation(item=first, usual=usual, reference=reference, again=fresh, missed=missed)


def cheapest_in_doubt(
    cells: Sequence[EligibleCell],
    again: Mapping[Cell, EligibleCell],
    point: SloPoint,
    *,
    at_most: Load | None,
) -> EligibleCell | None:
    """The cheapest cell that meets the limits, or that may and is at no larger load."""
    matches = []
    for item in cells:
        newest = again.get(item.place, item)
        is_sure = not unmet(item, point) and not unmet(newest, point)
        is_small = at_most is not None and not at_most < item.cell.load
        if is_sure or (is_small and may_qualify(newest, point)):
            matches.append(item)
    return min(matches, key=lambda item: item.usd, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is deployed at a point. ``usual`` is what it is compared with, None for itself.

    ``cheaper``: it costs less than ``usual``, and that is shown. ``notes`` are cautions.
    """

    point: SloPoint
    item: EligibleCell
    usual: EligibleCell | None
    measured_again: bool
    difference: Difference | None = None
    saving: Estimate | None = None
    cheaper: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TierChoices:
    """The choices of one tier, and the tests behind them.

    The cheapest cell at the recommended point is tested on its fresh starts. Other differences are
    tested on the first starts, as one family (Bonferroni), and only where that one is shown: a
    fixed sequence, in which any false difference at all has 5% (Maurer, Hothorn and Lehmacher,
    *Biometrie in der chemisch-pharmazeutischen Industrie* 6, 1995).
    """

    eligible: Sequence[EligibleCell]
    tier: TierInputs
    inputs: DecisionInputs

    @cached_property
    def main(self) -> Confirmation:
        """The confirmation at the recommended point."""
        return self.at(self._point)

    @cached_property
    def _point(self) -> SloPoint:
        return recommended_point(self.tier.tier, self.inputs.objective)

    @cached_property
    def _shown(self) -> dict[tuple[float, float], Confirmation]:
        return {}

    def at(self, point: SloPoint) -> Confirmation:
        """The confirmation at a point."""
        key = (point.ttft_ms, point.tolerance)
        if key not in self._shown:
            self._shown[key] = confirmation(self.eligible, self.tier, point, self.inputs.reference)
        return self._shown[key]

    @cached_property
    def pairs(self) -> tuple[tuple[EligibleCell, EligibleCell], ...]:
        """Every (reference's cell, cell) that is compared at one price, each once.

        Each variant's cheapest at the recommended point, then the cheapest at the others.
        """
        left = [item for item in self.own if item.place not in self.main.missed]
        ranking = best_per_variant(qualifying(left, self._point))
        shown = [self.at(other) for other in slo_points(self.tier.tier, self.inputs.objective)]
        compared = [(self.main.usual, self._likely(item)) for item in ranking]
        compared += [(each.usual, each.item) for each in shown if each.item is not None]
        return tuple(
            {
                (usual.place, item.place): (usual, item)
                for usual, item in compared
                if usual is not None and item.fleet is None
                if item.cell.variant != self.inputs.reference
            }.values()
        )

    def _likely(self, item: EligibleCell) -> EligibleCell:
        """A variant's cell, or its cheapest that may meet the limits, if that costs more."""
        usual = self.main.usual
        if usual is None or item.usd <= usual.usd or item.fleet is not None:
            return item
        cells = [each for each in self.own if each.cell.variant == item.cell.variant]
        again, load = self.main.again, usual.cell.load
        return cheapest_in_doubt(cells, again, self._point, at_most=load) or item

    @property
    def own(self) -> Iterator[EligibleCell]:
        """The cells of this tier."""
        return (item for item in self.eligible if item.tier == self.tier.tier)

    @cached_property
    def confirmed(self) -> Difference | None:
        """The difference that was tested on fresh starts, None where none was."""
        shown, fresh = self.main, self.tier.fresh.get("tps_mean")
        item, usual = shown.item, shown.usual
        if fresh is None or item is None or usual is None or not shown.settled:
            return None
        if item.fleet is not None or item.cell.variant == self.inputs.reference:
            return None
        change = fresh.difference(usual.place, item.place, family=1, looks=self.tier.looks)
        return None if change is None else replace(change, fresh=True)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Every tested difference, the confirmed one first."""
        first = self.confirmed
        done = None if first is None else ((first.reference, first.reference_load), _place(first))
        others = [pair for pair in self.pairs if (pair[0].place, pair[1].place) != done]
        table, opened = self.tier.throughput, first is None or first.different
        changes = (
            table.difference(usual.place, item.place, family=len(others)) for usual, item in others
        )
        rest = [replace(each, different=each.different and opened) for each in changes if each]
        return tuple(([first] if first else []) + rest)

    @property
    def rivals(self) -> list[EligibleCell]:
        """Each variant's cheapest cell at the recommended point, cheapest first."""
        return best_per_variant(qualifying(list(self.own), self._point))

    def is_over(self, most: int) -> bool:
        """Whether more fresh starts, ``most`` in all, would change nothing that is said."""
        shown, change = self.main, self.confirmed
        item, usual = shown.item, shown.usual
        if item is None or usual is None or item.cell.variant == self.inputs.reference:
            return True
        if item.fleet is not None:
            place = self.inputs.reference, item.cell.load
            return self._misses(place, self._point) or not self._misses(
                place, self._point, most=most
            )
        if change is None or change.different:
            return True
        return self.tier.fresh["tps_mean"].is_hopeless(
            usual.place, item.place, looks=self.tier.looks, most=most
        )

    @property
    def still_open(self) -> str:
        """What more fresh starts are for, in words."""
        change = self.confirmed
        if change is None:
            return "whether the default holds the rate is not shown yet"
        return f"the difference is not shown yet: {words.percent(saving_of(change))} less"

    def difference(self, usual: EligibleCell, item: EligibleCell) -> Difference | None:
        """The test of two cells' throughput."""
        wanted = usual.place, item.place
        return next(
            (x for x in self.differences if ((x.reference, x.reference_load), _place(x)) == wanted),
            None,
        )

    def choose(self, point: SloPoint | None = None) -> Choice | None:
        """The cheapest cell at a point that is not beaten by the reference; None: none qualifies.

        Without ``point`` at the recommended one.
        A cell that is not cheaper than the reference's, or not for sure within a few starts, gives
        way to it where the reference meets every limit.
        """
        point = point or self._point
        shown = self.at(point)
        if shown.item is None:
            return None
        item = shown.newest(shown.item)
        usual = None if shown.usual is None else shown.newest(shown.usual)
        if item.cell.variant == self.inputs.reference:
            usual = None
        choice = Choice(
            point=point,
            item=item,
            usual=usual,
            measured_again=item is not shown.item,
            notes=tuple(not_confirmed(place, why) for place, why in shown.missed.items()),
        )
        if usual is not None and item.fleet is not None:
            return self._at_a_rate(choice, usual)
        change = None if usual is None else self.difference(usual, item)
        return choice if usual is None or change is None else self._tested(choice, usual, change)

    def _tested(self, choice: Choice, usual: EligibleCell, change: Difference) -> Choice:
        cheaper = change.different and change.ratio.value > 1
        choice = replace(choice, difference=change, saving=saving_of(change), cheaper=cheaper)
        why = _why_not(choice.item, usual, change)
        return choice if why is None or unmet(usual, choice.point) else _default(choice, usual, why)

    def _at_a_rate(self, choice: Choice, usual: EligibleCell) -> Choice:
        """The default stays unless it misses a limit for sure at the rate of the other."""
        item, reference = choice.item, self.inputs.reference
        if item.usd >= usual.usd:
            assert item.fleet is not None
            needs = f"needs {plural(item.fleet.servers, 'server')} too: nothing saved"
            return _default(choice, usual, f"{words.cell_label(item.cell)} {needs}")
        if not self._misses((reference, item.cell.load), choice.point):
            why = (
                f"that {reference} misses a limit at {item.cell.load.words}, where "
                f"{item.cell.variant} does not, is not shown"
            )
            return _default(choice, usual, why)
        return replace(choice, saving=self._saving(item, usual), cheaper=True)

    def _misses(self, place: Cell, point: SloPoint, *, most: int | None = None) -> bool:
        """Whether a cell misses a limit for sure. Requests that failed are a miss.

        With ``most`` whether so many starts might show that.
        """
        if place in self.main.missed and place not in self.main.again:
            failed = (x.errors for x in self.tier.confirmation if (x.variant, x.load) == place)
            return most is None and any(failed)
        item = self.main.again.get(place)
        looks, tables = self.tier.looks, self.tier.fresh
        if item is None:
            looks, tables = 1, self.tier.tables
            item = next((x for x in self.own if x.place == place), None)
        if item is None:
            return any((x.variant, x.load) == place and x.errors for x in self.tier.cells)
        for metric, limit, _ in point.bounds(item.cell):
            table = tables.get(metric.name)
            if table is not None and table.is_above(place, limit, looks=looks, most=most):
                return True
        return False

    def _saving(self, item: EligibleCell, usual: EligibleCell) -> Estimate:
        """1 − dollars ÷ the reference's, from the fewest servers that it needs to the most.

        It needs more than at a rate where it surely misses a limit, and at most those of a rate
        that it surely meets, or of its lowest one. The other has the servers that are deployed.
        """
        assert usual.fleet is not None
        point, name = self._point, usual.cell.variant
        fleets = {
            x.place: (meets(x, point), x.fleet.servers)
            for x in (*self.own, *self.main.again.values())
            if x.cell.variant == name and x.fleet is not None
        }
        missed = [count for place, (_, count) in fleets.items() if self._misses(place, point)]
        met = [count for sure, count in fleets.values() if sure == "yes"]
        most = min(met, default=max(count for _, count in fleets.values()))
        price = usual.usd / usual.fleet.servers
        return Estimate(
            value=1 - item.usd / usual.usd,
            low=1 - item.usd / (price * max(missed)) if missed else None,
            high=1 - item.usd / (price * most) if missed else None,
            samples=min(item.cell.starts, usual.cell.starts),
        )


def _place(change: Difference) -> Cell:
    return change.candidate, change.load


def _default(choice: Choice, usual: EligibleCell, why: str) -> Choice:
    """The reference in place of a cell, with the reason."""
    return replace(
        choice,
        item=usual,
        usual=None,
        difference=None,
        saving=None,
        cheaper=False,
        notes=(*choice.notes, why),
    )


def not_confirmed(place: Cell, why: str) -> str:
    """Return the sentence for a cell that missed a limit when it was measured again."""
    variant, point = place
    return f"{variant} at {point.words} was not confirmed: {why}"


def _why_not(item: EligibleCell, usual: EligibleCell, change: Difference) -> str | None:
    """Why a cell gives way to the reference's, or None."""
    label = words.cell_label(item.cell)
    if change.ratio.value <= 1:
        again = " when measured again" if change.fresh else ""
        return f"{label} is not cheaper than {usual.cell.variant}{again}: {words.cost(item)}"
    if change.different or change.ratio.low is None:
        return None
    if change.starts_needed is not None and change.starts_needed <= _TIE_STARTS:
        return None
    return (
        f"{label} costs {words.percent(saving_of(change))} less, which these starts do not "
        f"distinguish from nothing; they would have shown {percent(change.detectable or 0.0)}"
    )


def saving_of(throughput: Difference) -> Estimate:
    """1 − cost ÷ the reference's, from the ratio of throughput at one price."""
    return throughput.ratio.mapped(lambda ratio: 1 - 1 / ratio)
