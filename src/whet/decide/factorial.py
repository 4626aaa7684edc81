"""Each lever's effect alone and in company: whether levers multiply is measured, not assumed.

A variant is the set of levers by which it differs from the baseline. Two variants that differ in
one lever give its effect in the company of the others; four that span two levers, a square, give
their interaction: what both bring, over the product of what each brings. On a log scale products
are sums, so that a square is a contrast of a two-level factorial design (Box, Hunter & Hunter,
*Statistics for Experimenters*, chapter 5). A run need not be a full factorial; what its variants
span is told, and what they do not is named.
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
from whet.decide.ratios import THROUGHPUT, SignificanceTest, ratio
from whet.decide.words import times
from whet.metrics.compare import within_floor

METRICS: Final[Mapping[str, tuple[str, int]]] = {
    THROUGHPUT: ("throughput", 1),
    "ttft_p95_ms": ("1/TTFT p95", -1),
    "tpot_p50_ms": ("1/TPOT p50", -1),
}
"""What is looked at: its name once above 1 is better, and the power that turns it so."""

MARGIN: Final = 0.10
"""An interaction that the run has to be able to see before it may say that levers multiply."""

_Set = frozenset[str]


def factorial(
    cells: Sequence[CellSummary],
    diffs: Mapping[str, frozenset[str]],
    *,
    baseline: str,
    significance: SignificanceTest,
) -> FactorialView:
    """Effects and interactions at every batch size, on each of ``METRICS``.

    ``cells`` are those that count (``admit``); ``diffs`` are the labels by which each variant of
    the run differs from ``baseline``, which is among them. A ratio of two cells is the run's own
    comparison where it made one, else that of the cells' intervals. An
    interaction of a and b is b's effect beside a over b's effect without, (AB/A) ÷ (B/S): four
    cells, each of them once, so that the two ratios are independent and their arms on the log
    scale add in squares (MOVER, see ``ratios.ratio``). Each metric has a noise floor of its own.
    Without two starts of each cell nothing has an interval, and every verdict is ``undecided``.
    """
    levers, sets = find_levers(diffs)
    design = _Design(cells, sets, baseline, levers)
    effects: list[LeverEffect] = []
    interactions: list[Interaction] = []
    for metric in METRICS:
        for size in design.sizes:
            bench = _Bench(found=design.at(size, metric), metric=metric, significance=significance)
            effects += _effects(bench, design)
            interactions += _interactions(bench, design)
    judged = {item.levers for item in interactions}
    return FactorialView(
        baseline=baseline,
        levers=levers,
        effects=tuple(effects),
        interactions=tuple(interactions),
        unmeasured=(*_alike(sets, baseline), *_unmeasured(design, judged)),
    )


def find_levers(
    diffs: Mapping[str, frozenset[str]],
) -> tuple[tuple[str, ...], dict[str, frozenset[str]]]:
    """The levers in the order in which the variants bring them, and each variant's set of them.

    What comes in the same variants always, as a recipe's weights and its KV cache, is one lever
    (``weights=x + kv_cache_dtype=fp8``): no cell can tell its parts apart. The size of the KV pool
    is none unless two variants differ by nothing else.
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
    """Weights are named first."""
    return not part.startswith("weights=")


def joint(figures: Sequence[Estimate]) -> Estimate:
    """The product of ratios that share a cell: their limits are multiplied.

    What is shared may move all of them at once, so that arms on the log scale add as they are,
    and not in squares. Exact where the shared cell alone is uncertain, else a little wide.
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
    """The noise floor of a combination of cells, as a share, from that of a ratio of two.

    The A/A floor is how far two starts of one variant lay apart, ``ln(1 + floor)`` on the log
    scale: two cells, each with an error that no interval within a start can show. Cells
    are started apart, so that these errors add in squares over the powers p of the cells. Two
    cells have Σp² = 2; a square has four (1, 1, −1, −1), √2 of a pair's floor. It is a scale
    and no bound: one repetition shows one draw of it.
    """
    widening = math.sqrt(sum(p * p for p in powers) / 2)
    return math.expm1(widening * math.log1p(pair_floor))


class _Design:
    """Which sets of levers have a cell, by batch size."""

    def __init__(
        self,
        cells: Sequence[CellSummary],
        sets: Mapping[str, _Set],
        baseline: str,
        levers: Sequence[str],
    ) -> None:
        self._order = {lever: at for at, lever in enumerate(levers)}
        self._cells: dict[int, dict[_Set, CellSummary]] = {}
        # Of variants with the same levers the baseline counts, then the first.
        for cell in sorted(cells, key=lambda cell: cell.variant != baseline):
            if cell.variant in sets:
                at = self._cells.setdefault(cell.batch_size, {})
                at.setdefault(sets[cell.variant], cell)
        self.sets = list(dict.fromkeys(sets.values()))
        self.sizes = sorted(self._cells)

    def at(self, size: int, metric: str) -> dict[_Set, tuple[CellSummary, Estimate]]:
        """The cells with a figure, in the order of the variants."""
        cells = self._cells[size]
        return {
            levers: (cells[levers], figure)
            for levers in self.sets
            if levers in cells and (figure := getattr(cells[levers], metric)) and figure.value > 0
        }

    def measured(self, levers: _Set) -> bool:
        """Whether the set has a cell at some batch size."""
        return any(levers in cells for cells in self._cells.values())

    def named(self, levers: Iterable[str]) -> tuple[str, ...]:
        """Levers in the order in which the variants bring them."""
        return tuple(sorted(levers, key=self._order.__getitem__))


_Found = Mapping[_Set, tuple[CellSummary, Estimate]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """One metric at one batch size: the cells that have it, and how two of them compare."""

    found: _Found
    metric: str
    significance: SignificanceTest

    def ratio(self, top: _Set, below: _Set) -> Estimate:
        """The cell of ``top`` over that of ``below``, turned so that above 1 is better."""
        return self.compared(top, below)[0]

    def compared(self, top: _Set, below: _Set) -> tuple[Estimate, EffectVerdict]:
        """The ratio and its verdict: those of the run's own comparison where it made one."""
        (candidate, figure), (reference, beneath) = self.found[top], self.found[below]
        turn = METRICS[self.metric][1]
        if (item := self.significance.between(reference, candidate, self.metric)) is not None:
            own = _power(item.ratio, turn)
            return own, "undecided" if item.verdict == "unknown" else item.verdict
        change = _over(_power(figure, turn), _power(beneath, turn))
        floor = self.floor(candidate.batch_size)
        sign = _direction(change, floor)
        return change, "undecided" if sign is None else _EFFECTS[sign]

    def floor(self, batch_size: int) -> float | None:
        """The noise floor of the metric."""
        return self.significance.floor(batch_size, metric=self.metric)


_EFFECTS: Final[Mapping[int, EffectVerdict]] = {-1: "worse", 0: "no difference", 1: "better"}
_INTERACTIONS: Final[Mapping[int, InteractionVerdict]] = {
    -1: "fight",
    0: "multiplicative",
    1: "help",
}


def _effects(bench: _Bench, design: _Design) -> Iterator[LeverEffect]:
    for levers, (candidate, _) in bench.found.items():
        for lever in design.named(levers):
            context = levers - {lever}
            if context in bench.found:
                change, verdict = bench.compared(levers, context)
                yield LeverEffect(
                    lever=lever,
                    context=design.named(context),
                    batch_size=candidate.batch_size,
                    metric=bench.metric,
                    reference=bench.found[context][0].variant,
                    candidate=candidate.variant,
                    ratio=change,
                    noise_floor=bench.floor(candidate.batch_size),
                    verdict=verdict,
                )


def _interactions(bench: _Bench, design: _Design) -> Iterator[Interaction]:
    """Every square, and every set of three or more levers beside what they bring alone."""
    for levers in bench.found:
        whole = design.named(levers)
        groups: list[tuple[str, ...]] = list(combinations(whole, 2))
        if len(whole) > 2:
            groups.append(whole)
        for group in groups:
            base = levers - set(group)
            if all(corner in bench.found for corner in (base, *(base | {x} for x in group))):
                yield _interaction(group, base, bench, design)


def _interaction(group: tuple[str, ...], base: _Set, bench: _Bench, design: _Design) -> Interaction:
    """All of ``group`` over the product of each: (ABC…/A) ÷ (B/S · C/S …)."""
    first, *others = (base | {lever} for lever in group)
    whole = base | set(group)
    cell = bench.found[whole][0]
    alone = [bench.ratio(corner, base) for corner in others]
    change = _over(bench.ratio(whole, first), joint(alone))
    pair_floor = bench.floor(cell.batch_size)
    powers = (1, len(others), *(-1 for _ in group))
    floor = None if pair_floor is None else floor_of(pair_floor, powers)
    made = Interaction(
        levers=group,
        context=design.named(base),
        batch_size=cell.batch_size,
        metric=bench.metric,
        variant=cell.variant,
        observed=bench.ratio(whole, base),
        product=joint([bench.ratio(first, base), *alone]),
        ratio=change,
        noise_floor=floor,
        verdict=_interaction_verdict(change, floor),
        sentence="",
    )
    return replace(made, sentence=_sentence(made))


def _over(top: Estimate, below: Estimate) -> Estimate:
    return replace(ratio(top, below), certified=top.certified and below.certified)


def _direction(change: Estimate, floor: float | None) -> Literal[-1, 0, 1] | None:
    """-1 below 1, 1 above, 0 within the floor or with 1 in the interval, None without an interval.

    The floor is a share either way on the log scale, for a ratio may be turned over.
    """
    if change.low is None or change.high is None:
        return None
    if within_floor(change.value, floor or 0.0) or change.low <= 1 <= change.high:
        return 0
    return -1 if change.value < 1 else 1


def _interaction_verdict(change: Estimate, floor: float | None) -> InteractionVerdict:
    """Levers multiply only where an interaction of ``MARGIN`` would have shown.

    An interval that reaches beyond ``MARGIN``, or a noise that could hide as much, does not show
    equivalence (Schuirmann 1987, two one-sided tests): that is ``undecided``.
    """
    direction = _direction(change, floor)
    hidden = unseen(change, floor)
    if direction is None or (direction == 0 and (hidden is None or hidden > math.log1p(MARGIN))):
        return "undecided"
    return _INTERACTIONS[direction]


def unseen(change: Estimate, floor: float | None) -> float | None:
    """How far from 1, on the log scale, a ratio may truly lie; None without an interval."""
    if change.low is None or change.high is None:
        return None
    return max(abs(math.log(change.low)), abs(math.log(change.high)), math.log1p(floor or 0.0))


def _power(figure: Estimate, power: int) -> Estimate:
    """``figure`` or, with −1, its inverse, the limits with it."""
    low, high = figure.low, figure.high
    if low is None or high is None or low <= 0:
        return replace(figure, value=figure.value**power, low=None, high=None)
    ends = (low**power, high**power)
    return replace(figure, value=figure.value**power, low=min(ends), high=max(ends))


def _sentence(item: Interaction) -> str:
    where = f"{METRICS[item.metric][0]} at {item.batch_size}"
    if item.context:
        where += f", with {_listed(item.context)}"
    return (
        f"{where}: {' × '.join(item.levers)} bring {times(item.ratio)} the product "
        f"of their effects: {_ending(item)}"
        + ("" if item.ratio.certified else "; too few requests to certify the percentile")
    )


def _ending(item: Interaction) -> str:
    if item.verdict == "fight":
        return "they fight"
    if item.verdict == "help":
        return "they help one another"
    hidden = unseen(item.ratio, item.noise_floor)
    if hidden is None:
        return "one start: no verdict"
    share = f"an interaction of up to {100 * math.expm1(hidden):.0f}% could go unseen"
    return f"they multiply; {share}" if item.verdict == "multiplicative" else f"undecided; {share}"


def _unmeasured(design: _Design, judged: set[tuple[str, ...]]) -> Iterator[str]:
    """Which corners are lacking where levers come together, one sentence a pair."""
    for pair in combinations(design.named({one for found in design.sets for one in found}), 2):
        both = [levers for levers in design.sets if levers.issuperset(pair)]
        if not design.sizes or not both or pair in judged:
            continue
        whole = min(both, key=len)
        base = whole - set(pair)
        corners = [base, *(base | {lever} for lever in pair), whole]
        lacking = [_alone(design.named(c)) for c in corners if not design.measured(c)]
        why = (
            f"no cell that counts has {_listed(lacking, 'or')}"
            if lacking
            else "no batch size has all four corners"
        )
        yield f"{' × '.join(pair)}: not told, as {why}"


def _alike(sets: Mapping[str, _Set], baseline: str) -> Iterator[str]:
    """A variant whose levers another one has already does not count; which, is said."""
    first = {sets[baseline]: baseline}
    for name, levers in sets.items():
        other = first.setdefault(levers, name)
        if other != name:
            yield f"{name} pulls the same levers as {other}, and is left out here"


def _alone(levers: tuple[str, ...]) -> str:
    return f"{_listed(levers)} alone" if levers else "none of the levers"


def _listed(items: Sequence[str], word: str = "and") -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {word} {items[-1]}"
