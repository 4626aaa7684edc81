"""The comparison table, the matrix and the headline: said once for every form of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records import (
    CellSummary,
    Decision,
    Estimate,
    MatrixEntry,
    QualityRecord,
    Recommendation,
)
from whet.report.text import DASH, EMPTY, ONE_START, Shown, shown
from whet.report.view import RunView


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One cell of the run as one line of the comparison table.

    ``state`` is ``good``, ``excluded`` (from the decision), ``unproven`` (before a decision, a
    claim lacks evidence), ``failed``, ``interrupted`` or ``missing``. ``status`` is the decision's
    word on the cell, empty before a decision. ``won`` marks a recommended cell that saves cost.
    """

    variant: str
    batch_size: int
    figures: tuple[Shown, ...]
    evidence: str | None
    state: str
    status: str
    note: str | None
    recommended: bool
    won: bool
    front: bool

    @property
    def empty(self) -> bool:
        """Whether the cell has no figure at all, so that its note may take their place."""
        return all(item == EMPTY for item in self.figures)


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """A column of the comparison table: a short head, its unit and what it means."""

    name: str
    unit: str
    meaning: str


UNPROVEN: Final = ("contradicted", "unproved")
"""Outcomes with which a cell does not count."""

_Pick = Callable[[CellSummary], Shown]


def _hits(cell: CellSummary) -> Shown:
    if cell.prefix_hit_rate is None:
        return EMPTY
    expected = DASH if cell.expected_hit_rate is None else percent(cell.expected_hit_rate)
    return Shown(text=f"{percent(cell.prefix_hit_rate)} / {expected}")


COLUMNS: Final[tuple[tuple[Heading, _Pick], ...]] = (
    (
        Heading(name="TTFT p50", unit="ms", meaning="median time to first token, from schedule"),
        lambda cell: shown(cell.ttft_p50_ms),
    ),
    (
        Heading(name="TTFT p95", unit="ms", meaning="95th percentile time to first token"),
        lambda cell: shown(cell.ttft_p95_ms),
    ),
    (
        Heading(name="TPOT p50", unit="ms", meaning="median time per output token after the first"),
        lambda cell: shown(cell.tpot_p50_ms),
    ),
    (
        Heading(name="Throughput", unit="tok/s", meaning="output tokens per second, steady window"),
        lambda cell: shown(cell.tps_mean),
    ),
    (
        Heading(name="Memory", unit="GB", meaning="memory of the server's process tree under load"),
        lambda cell: shown(cell.memory_gb),
    ),
    (
        Heading(name="Cost", unit="per 1M tok", meaning="US dollars for a million output tokens"),
        lambda cell: shown(cell.cost_per_1m_tokens, unit="$"),
    ),
    (
        Heading(
            name="Acceptance", unit="tok/step", meaning="under load: 1 + accepted drafts per step"
        ),
        lambda cell: shown(cell.acceptance_length),
    ),
    (
        Heading(name="Prefix hits", unit="of expected", meaning="measured and built-in hit rate"),
        _hits,
    ),
)


def headings() -> tuple[Heading, ...]:
    """The figure columns of the comparison table, in order."""
    return tuple(heading for heading, _ in COLUMNS)


def comparison_rows(view: RunView) -> tuple[Row, ...]:
    """Every cell of the run, measured or not, variant by variant."""
    return tuple(
        _row(view, variant, batch_size)
        for variant in view.variants
        for batch_size in view.batch_sizes
    )


def _row(view: RunView, variant: str, batch_size: int) -> Row:
    cell = view.cell(variant, batch_size)
    evidence = view.evidence(variant, batch_size)
    decided = view.decided(variant, batch_size)
    chosen = view.decision.recommendation if view.decision else None
    pareto = view.decision.pareto if view.decision else ()
    state, note = _state(cell, evidence)
    excluded = decided is not None and decided.status == "excluded"
    if excluded and state == "good":
        state = "excluded"
    recommended = chosen is not None and (chosen.variant, chosen.batch_size) == (
        variant,
        batch_size,
    )
    return Row(
        variant=variant,
        batch_size=batch_size,
        figures=tuple(pick(cell) if cell else EMPTY for _, pick in COLUMNS),
        evidence=evidence,
        state=state,
        status=decided.label if decided else "",
        note=note,
        recommended=recommended,
        won=recommended and view.decision is not None and is_win(view.decision),
        front=(variant, batch_size) in pareto and not excluded,
    )


def _state(cell: CellSummary | None, evidence: str | None) -> tuple[str, str | None]:
    if cell is None:
        return "missing", "not measured"
    if cell.status != "complete":
        return cell.status, cell.failure or f"the cell is {cell.status}"
    if evidence in UNPROVEN:
        return "unproven", cell.failure or f"a claim of this cell is {evidence}"
    return "good", cell.failure


def regression(record: QualityRecord | None) -> Estimate | None:
    """Perplexity over the baseline's minus one: 0.01 is a 1% regression."""
    ratio = record.perplexity_ratio if record else None
    if ratio is None:
        return None
    return Estimate(
        value=ratio.value - 1,
        low=None if ratio.low is None else ratio.low - 1,
        high=None if ratio.high is None else ratio.high - 1,
        samples=ratio.samples,
        certified=ratio.certified,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixTable:
    """The decision matrix of one tier: ``rows`` holds one entry a tolerance for each target."""

    tier: str
    tolerances: tuple[float, ...]
    rows: tuple[tuple[float, tuple[MatrixEntry | None, ...]], ...]


def matrix_tables(decision: Decision) -> tuple[MatrixTable, ...]:
    """The matrix entries laid out, one table a tier."""
    found = {(e.tier, e.ttft_target_ms, e.quality_tolerance): e for e in decision.matrix}
    tables = []
    for tier in dict.fromkeys(entry.tier for entry in decision.matrix):
        own = [entry for entry in decision.matrix if entry.tier == tier]
        targets = sorted({entry.ttft_target_ms for entry in own})
        tolerances = tuple(sorted({entry.quality_tolerance for entry in own}))
        rows = tuple(
            (target, tuple(found.get((tier, target, tolerance)) for tolerance in tolerances))
            for target in targets
        )
        tables.append(MatrixTable(tier=tier, tolerances=tolerances, rows=rows))
    return tuple(tables)


def entry_words(entry: MatrixEntry | None) -> tuple[str, str]:
    """A matrix entry as a title and a second line."""
    if entry is None:
        return DASH, ""
    if entry.outcome == "none":
        return "none", ""
    title = f"{entry.variant} @ {entry.batch_size}"
    cost = f"{shown(entry.cost_per_1m_tokens, unit='$').text} per 1M"
    if entry.outcome == "winner":
        return title, cost
    sure = entry.cost_per_1m_tokens is not None and entry.cost_per_1m_tokens.low is not None
    level_with = f"level with {', '.join(entry.rivals)}" if sure else ONE_START
    return entry.outcome, f"{title}, {cost}; {level_with}"


def is_corner(chosen: Recommendation | None, entry: MatrixEntry | None) -> bool:
    """Whether this corner of the matrix is the one that the recommendation was made for."""
    return (
        chosen is not None
        and entry is not None
        and (chosen.tier, chosen.ttft_target_ms, chosen.quality_tolerance)
        == (entry.tier, entry.ttft_target_ms, entry.quality_tolerance)
    )


def is_win(decision: Decision) -> bool:
    """Whether the recommendation saves cost: another variant than the baseline, and no tie."""
    chosen = decision.recommendation
    if chosen is None or chosen.variant == decision.baseline:
        return False
    corner = next((entry for entry in decision.matrix if is_corner(chosen, entry)), None)
    return corner is None or corner.outcome == "winner"


def target_words(ttft_ms: float) -> str:
    """``TTFT < 200 ms``, ``TTFT < 1 s``."""
    whole_seconds = ttft_ms >= 1000 and ttft_ms % 1000 == 0
    return f"TTFT < {ttft_ms / 1000:g} s" if whole_seconds else f"TTFT < {ttft_ms:g} ms"


def tolerance_words(tolerance: float) -> str:
    """``< 1% perplexity``."""
    return f"< {100 * tolerance:g}% perplexity"


def headline(view: RunView) -> tuple[str, str]:
    """The recommendation as a title and a sentence, whatever state the run is in."""
    if view.decision is not None:
        return decision_headline(view.decision)
    done = plural(len([cell for cell in view.cells if cell.status == "complete"]), "cell")
    return "No decision yet", f"The run is incomplete: {done} measured so far."


def decision_headline(decision: Decision) -> tuple[str, str]:
    """A decision as a title and a sentence."""
    chosen = decision.recommendation
    if chosen is None:
        return (
            "Nothing qualifies",
            "No variant met the objective with its evidence and its quality; "
            "the matrix and the exclusions say why.",
        )
    sentence = (
        f"{shown(chosen.cost_per_1m_tokens, unit='$').text} for a million output tokens"
        f"{_saving_words(chosen, decision)}, at {target_words(chosen.ttft_target_ms)} "
        f"and {tolerance_words(chosen.quality_tolerance)} regression on {chosen.tier}. "
        f"To hold {chosen.batch_size} in flight, limit concurrency in your gateway, or set "
        f"--max-num-seqs {chosen.batch_size} (more requests then wait)."
    )
    return f"Serve {chosen.variant} with {plural(chosen.batch_size, 'request')} in flight", sentence


def _saving_words(chosen: Recommendation, decision: Decision) -> str:
    if chosen.saving is None or chosen.variant == decision.baseline:
        return ""
    way = "below" if chosen.saving.value >= 0 else "above"
    told = f"{number(abs(100 * chosen.saving.value))}% {way} {decision.baseline}"
    doubt = saving_doubt(chosen, decision)
    return f" ({told}, {doubt})" if doubt else f", {told}"


def saving_doubt(chosen: Recommendation, decision: Decision) -> str:
    """Why the saving may be none, or nothing."""
    if chosen.saving is None or chosen.saving.low is None:
        return ONE_START
    corner = next((entry for entry in decision.matrix if is_corner(chosen, entry)), None)
    level = corner is not None and decision.baseline in corner.rivals
    return "within the noise of this run" if level else ""
