"""Each lever's effect alone and in context: whether levers multiply is measured, not assumed.

A variant is the set of levers by which it differs from the baseline. Two variants that differ in
one lever give its effect in the context of the others. Four variants that span two levers, a
square, give their interaction: the effect of both over the product of their separate effects. On a
log scale products are sums, so a square is a contrast of a two-level factorial design (Box, Hunter
& Hunter, *Statistics for Experimenters*, chapter 5). A run need not be a full factorial: the view
reports what its variants span and names the squares that they do not complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, Literal

from whet.core.flags import drop_kv_sizing
from whet.core.records import (
    CellSummary,
    EffectVerdict,
    Estimate,
    FactorialView,
    Interaction,
    InteractionVerdict,
    LeverEffect,
)
from whet.decision.ratios import THROUGHPUT, SignificanceTest, ratio
from whet.decision.words import times
from whet.metrics.compare import within_floor

METRICS: Final[Mapping[str, tuple[str, int]]] = {
    THROUGHPUT: ("throughput", 1),
    "ttft_p95_ms": ("1/TTFT p95", -1),
    "tpot_p50_ms": ("1/TPOT p50", -1),
}
"""Metrics of the view: label, and the power (1 or −1) with which a ratio above 1 is better."""

MARGIN: Final = 0.10
"""Smallest interaction that a run must be able to detect to call levers multiplicative."""

_Set = frozenset[str]


def factorial(
    cells: Sequence[CellSummary],
    diffs: Mapping[str, frozenset[str]],
    *,
    baseline: str,
    significance: SignificanceTest,
) -> FactorialView:
    """Compute effects and interactions at every batch size, on each of ``METRICS``.

    ``cells`` are the eligible ones; ``diffs`` maps each variant, ``baseline`` included, to the
    labels by which it differs from ``baseline``. The ratio of two cells comes from the run's own
    comparison if it made one, else from the cells' intervals. The interaction of a and b is b's
    effect with a over b's effect without a, (AB/A) ÷ (B/S). It uses each of four cells once, so
    the two ratios are independent and their arms on the log scale add in squares (MOVER, see
    ``ratios.ratio``). Each metric has its own noise floor. With one start per cell nothing has an
    interval, and every verdict is ``undecided``.
    """
    levers, sets = find_levers(diffs)
    design = _Design(cells, sets, baseline, levers)
    effects: list[LeverEffect] = []
    interactions: list[Interaction] = []
    for metric in METRICS:
        for size in design.sizes:
            slice_ = _MetricSlice(
                cells=design.at(size, metric), metric=metric, significance=significance
            )
            effects += _effects(slice_, design)
            interactions += _interactions(slice_, design)
    judged = {item.levers for item in interactions}
    return FactorialView(
        baseline=baseline,
        levers=levers,
        effects=tuple(effects),
        interactions=tuple(interactions),
        unmeasured=(*_duplicates(sets, baseline), *_unmeasured(design, judged)),
    )


def find_levers(
    diffs: Mapping[str, frozenset[str]],
) -> tuple[tuple[str, ...], dict[str, frozenset[str]]]:
    """Return the levers in the order of the variants, and each variant's set of levers.

    Labels that always occur together, such as a recipe's weights and its KV cache, are merged into
    one lever (``weights=x + kv_cache_dtype=fp8``): no cell separates them. The size of the KV pool
    counts as a lever only if two variants differ by nothing else.
    """
    bare = {name: drop_kv_sizing(labels) for name, labels in diffs.items()}
    if len(set(bare.values())) == len(set(diffs.values())):
        diffs = bare
    support: dict[str, list[str]] = {}
    for name, labels in diffs.items():
        for part in sorted(labels, key=lambda part: (_rank(part), part)):
            support.setdefault(part, []).append(name)
    together: dict[tuple[str, ...], list[str]] = {}
    for part, names in support.items():
        together.setdefault(tuple(names), []).append(part)
    joined = {" + ".join(parts): names for names, parts in together.items()}
    sets = {
        variant: frozenset(lever for lever, names in joined.items() if variant in names)
        for variant in diffs
    }
    return tuple(joined), sets


def _rank(part: str) -> bool:
    """Sort weights first."""
    return not part.startswith("weights=")


def joint(figures: Sequence[Estimate]) -> Estimate:
    """Multiply ratios that share a cell, and their limits.

    The shared cell may move all of them at once, so arms on the log scale add linearly, not in
    squares. Exact if only the shared cell is uncertain, else a little wide.
    """
    value = math.prod(item.value for item in figures)
    lows = [item.low for item in figures if item.low is not None]
    highs = [item.high for item in figures if item.high is not None]
    bounded = len(lows) == len(highs) == len(figures)
    return Estimate(
        value=value,
        low=math.prod(lows) if bounded else None,
        high=math.prod(highs) if bounded else None,
        samples=min(item.samples for item in figures),
        certified=all(item.certified for item in figures),
    )


def floor_of(pair_floor: float, powers: Iterable[int]) -> float:
    """Return the noise floor of a combination of cells, as a share, from a pair's floor.

    The A/A floor is the distance between two starts of one variant, ``ln(1 + floor)`` on the log
    scale: two cells, each with an error that an interval within a start does not show. Each cell
    has its own start, so these errors add in squares over the powers p of the cells. Two cells
    have Σp² = 2; a square has four (1, 1, −1, −1), √2 of a pair's floor. The floor is a scale, not
    a bound: one repetition shows one draw of it.
    """
    widening = math.sqrt(sum(p * p for p in powers) / 2)
    return math.expm1(widening * math.log1p(pair_floor))


class _Design:
    """The cell of each set of levers, by batch size."""

    def __init__(
        self,
        cells: Sequence[CellSummary],
        sets: Mapping[str, _Set],
        baseline: str,
        levers: Sequence[str],
    ) -> None:
        self._order = {lever: at for at, lever in enumerate(levers)}
        self._cells: dict[int, dict[_Set, CellSummary]] = {}
        # If variants have the same levers, the baseline counts, else the first of them.
        for cell in sorted(cells, key=lambda cell: cell.variant != baseline):
            if cell.variant in sets:
                at = self._cells.setdefault(cell.batch_size, {})
                at.setdefault(sets[cell.variant], cell)
        self.sets = list(dict.fromkeys(sets.values()))
        self.sizes = sorted(self._cells)

    def at(self, size: int, metric: str) -> dict[_Set, tuple[CellSummary, Estimate]]:
        """Return the cells that have a figure, in the order of the variants."""
        cells = self._cells[size]
        return {
            levers: (cells[levers], figure)
            for levers in self.sets
            if levers in cells and (figure := getattr(cells[levers], metric)) and figure.value > 0
        }

    def has_cell(self, levers: _Set) -> bool:
        """Return whether the set has a cell at some batch size."""
        return any(levers in cells for cells in self._cells.values())

    def in_order(self, levers: Iterable[str]) -> tuple[str, ...]:
        """Sort levers in the order of the variants."""
        return tuple(sorted(levers, key=self._order.__getitem__))


@dataclass(frozen=True, kw_only=True, slots=True)
class _MetricSlice:
    """One metric at one batch size: the cells that have it, and how two of them compare."""

    cells: Mapping[_Set, tuple[CellSummary, Estimate]]
    metric: str
    significance: SignificanceTest

    def ratio(self, top: _Set, below: _Set) -> Estimate:
        """Divide the figure of ``top`` by that of ``below``; above 1 is better."""
        return self.compare(top, below)[0]

    def compare(self, top: _Set, below: _Set) -> tuple[Estimate, EffectVerdict]:
        """Return the ratio and its verdict, from the run's own comparison if it made one."""
        (candidate, figure), (reference, reference_figure) = self.cells[top], self.cells[below]
        power = METRICS[self.metric][1]
        if (item := self.significance.between(reference, candidate, self.metric)) is not None:
            verdict = "undecided" if item.verdict == "unknown" else item.verdict
            return _power(item.ratio, power), verdict
        change = _over(_power(figure, power), _power(reference_figure, power))
        floor = self.floor(candidate.batch_size)
        sign = _direction(change, floor)
        return change, "undecided" if sign is None else _EFFECTS[sign]

    def floor(self, batch_size: int) -> float | None:
        """Return the noise floor of the metric."""
        return self.significance.floor(batch_size, metric=self.metric)


_EFFECTS: Final[Mapping[int, EffectVerdict]] = {-1: "worse", 0: "no difference", 1: "better"}
_INTERACTIONS: Final[Mapping[int, InteractionVerdict]] = {
    -1: "fight",
    0: "multiplicative",
    1: "help",
}


def _effects(slice_: _MetricSlice, design: _Design) -> Iterator[LeverEffect]:
    for levers, (candidate, _) in slice_.cells.items():
        for lever in design.in_order(levers):
            context = levers - {lever}
            if context in slice_.cells:
                change, verdict = slice_.compare(levers, context)
                yield LeverEffect(
                    lever=lever,
                    context=design.in_order(context),
                    batch_size=candidate.batch_size,
                    metric=slice_.metric,
                    reference=slice_.cells[context][0].variant,
                    candidate=candidate.variant,
                    ratio=change,
                    noise_floor=slice_.floor(candidate.batch_size),
                    verdict=verdict,
                )


def _interactions(slice_: _MetricSlice, design: _Design) -> Iterator[Interaction]:
    """Yield every square, and every set of three or more levers with their separate effects."""
    for levers in slice_.cells:
        whole = design.in_order(levers)
        groups: list[tuple[str, ...]] = list(combinations(whole, 2))
        if len(whole) > 2:
            groups.append(whole)
        for group in groups:
            base = levers - set(group)
            if all(corner in slice_.cells for corner in (base, *(base | {x} for x in group))):
                yield _interaction(group, base, slice_, design)


def _interaction(
    group: tuple[str, ...], base: _Set, slice_: _MetricSlice, design: _Design
) -> Interaction:
    """Divide the effect of ``group`` by the product of its parts: (ABC…/A) ÷ (B/S · C/S …)."""
    first, *others = (base | {lever} for lever in group)
    whole = base | set(group)
    cell = slice_.cells[whole][0]
    alone = [slice_.ratio(corner, base) for corner in others]
    change = _over(slice_.ratio(whole, first), joint(alone))
    pair_floor = slice_.floor(cell.batch_size)
    powers = (1, len(others), *(-1 for _ in group))
    floor = None if pair_floor is None else floor_of(pair_floor, powers)
    made = Interaction(
        levers=group,
        context=design.in_order(base),
        batch_size=cell.batch_size,
        metric=slice_.metric,
        variant=cell.variant,
        observed=slice_.ratio(whole, base),
        product=joint([slice_.ratio(first, base), *alone]),
        ratio=change,
        noise_floor=floor,
        verdict=_interaction_verdict(change, floor),
        sentence="",
    )
    return replace(made, sentence=_sentence(made))


def _over(top: Estimate, below: Estimate) -> Estimate:
    return replace(ratio(top, below), certified=top.certified and below.certified)


def _direction(change: Estimate, floor: float | None) -> Literal[-1, 0, 1] | None:
    """Return -1 below 1, 1 above 1, 0 if undistinguished from 1, None without an interval.

    A ratio within the floor, or with 1 in its interval, is undistinguished. The floor is symmetric
    on the log scale, because a ratio may be inverted.
    """
    if change.low is None or change.high is None:
        return None
    if within_floor(change.value, floor or 0.0) or change.low <= 1 <= change.high:
        return 0
    return -1 if change.value < 1 else 1


def _interaction_verdict(change: Estimate, floor: float | None) -> InteractionVerdict:
    """Return ``multiplicative`` only if an interaction of ``MARGIN`` would have been detected.

    An interval that reaches beyond ``MARGIN``, or noise that could hide as much, does not show
    equivalence (Schuirmann 1987, two one-sided tests): the verdict is ``undecided``.
    """
    direction = _direction(change, floor)
    hidden = _largest_undetected(change, floor)
    if direction is None or (direction == 0 and (hidden is None or hidden > math.log1p(MARGIN))):
        return "undecided"
    return _INTERACTIONS[direction]


def _largest_undetected(change: Estimate, floor: float | None) -> float | None:
    """Return how far from 1, on the log scale, the true ratio may be; None without an interval."""
    if change.low is None or change.high is None:
        return None
    return max(abs(math.log(change.low)), abs(math.log(change.high)), math.log1p(floor or 0.0))


def _power(figure: Estimate, power: int) -> Estimate:
    """Raise a figure and its limits to ``power``, 1 or −1."""
    low, high = figure.low, figure.high
    if low is None or high is None or low <= 0:
        return replace(figure, value=figure.value**power, low=None, high=None)
    ends = (low**power, high**power)
    return replace(figure, value=figure.value**power, low=min(ends), high=max(ends))


def _sentence(item: Interaction) -> str:
    where = f"{METRICS[item.metric][0]} at {item.batch_size}"
    if item.context:
        where += f", with {_enumerate(item.context)}"
    return (
        f"{where}: {' × '.join(item.levers)} have {times(item.ratio)} the product "
        f"of their separate effects: {_ending(item)}"
        + ("" if item.ratio.certified else "; too few requests to certify the percentile")
    )


def _ending(item: Interaction) -> str:
    if item.verdict == "fight":
        return "they interfere"
    if item.verdict == "help":
        return "they help one another"
    hidden = _largest_undetected(item.ratio, item.noise_floor)
    if hidden is None:
        return "one start: no verdict"
    share = f"an interaction of up to {100 * math.expm1(hidden):.0f}% could stay undetected"
    return f"they multiply; {share}" if item.verdict == "multiplicative" else f"undecided; {share}"


def _unmeasured(design: _Design, judged: set[tuple[str, ...]]) -> Iterator[str]:
    """Name the missing corners of each pair of levers that occurs together."""
    for pair in combinations(design.in_order(frozenset().union(*design.sets)), 2):
        both = [levers for levers in design.sets if levers.issuperset(pair)]
        if not design.sizes or not both or pair in judged:
            continue
        whole = min(both, key=len)
        base = whole - set(pair)
        corners = [base, *(base | {lever} for lever in pair), whole]
        missing = [_only(design.in_order(c)) for c in corners if not design.has_cell(c)]
        why = (
            f"no eligible cell has {_enumerate(missing, 'or')}"
            if missing
            else "no batch size has all four corners"
        )
        yield f"{' × '.join(pair)}: not measurable: {why}"


def _duplicates(sets: Mapping[str, _Set], baseline: str) -> Iterator[str]:
    """Name each variant that is left out because another one has the same levers."""
    first = {sets[baseline]: baseline}
    for name, levers in sets.items():
        other = first.setdefault(levers, name)
        if other != name:
            yield f"{name} sets the same levers as {other}, and is left out here"


def _only(levers: tuple[str, ...]) -> str:
    return f"only {_enumerate(levers)}" if levers else "none of the levers"


def _enumerate(items: Sequence[str], word: str = "and") -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
