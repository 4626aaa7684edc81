"""Parts of the report that more than one form of it tells: tiles, evidence, set-up."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records import (
    ComparisonSet,
    Decision,
    DegenerateTraffic,
    QuantizedCheckpoint,
    TaskExample,
    Verdict,
)
from whet.core.units import human_duration
from whet.metrics.latency_anomalies import latency_anomalies
from whet.report.rows import saving_doubt, target_words
from whet.report.text import DASH, Shown, shown
from whet.report.view import RunView

_LATENCIES: Final = {"ttft_p95_ms": "TTFT p95", "tpot_p50_ms": "TPOT p50"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A headline figure of the recommended cell."""

    name: str
    shown: Shown
    note: str


def tiles(view: RunView) -> tuple[Tile, ...]:
    """The recommended cell's figures, each with its interval and what it stands against."""
    chosen = view.decision.recommendation if view.decision else None
    if chosen is None or view.decision is None:
        return ()
    base = chosen.baseline_cost_per_1m_tokens
    own = chosen.variant == view.decision.baseline
    against = f"{view.baseline} at best {shown(base, unit='$').text}" if base and not own else ""
    made = [
        Tile(
            name="Cost per 1M tokens",
            shown=shown(chosen.cost_per_1m_tokens, unit="$"),
            note=against,
        )
    ]
    if chosen.saving is not None and not own:
        doubt = saving_doubt(chosen, view.decision)
        made.append(
            Tile(
                name="Saving",
                shown=shown(chosen.saving, unit="%"),
                note=f"against {view.baseline}{f', {doubt}' if doubt else ''}",
            )
        )
    cell = view.cell(chosen.variant, chosen.batch_size)
    if cell is not None:
        made.append(
            Tile(
                name="TTFT p95, ms",
                shown=shown(cell.ttft_p95_ms),
                note=f"target {chosen.ttft_target_ms:g}",
            )
        )
        made.append(
            Tile(
                name="Tokens per second",
                shown=shown(cell.tps_mean),
                note="output tokens, all requests",
            )
        )
    record = view.quality.get(chosen.variant)
    if record is not None and own:
        made.append(
            Tile(name="Perplexity", shown=shown(record.perplexity), note="the baseline's own")
        )
    elif record is not None and record.perplexity_ratio is not None:
        made.append(
            Tile(
                name="Perplexity",
                shown=shown(record.perplexity_ratio, unit="+%"),
                note=f"tolerance {100 * chosen.quality_tolerance:g}%",
            )
        )
    return tuple(made)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceGroup:
    """Verdicts on one claim that agree: same variant, claim and outcome."""

    variant: str
    kind: str
    statement: str
    expected: str
    outcome: str
    verdicts: tuple[Verdict, ...]


def evidence_groups(view: RunView) -> tuple[EvidenceGroup, ...]:
    """Verdicts gathered by variant, claim and outcome, so that five batch sizes are one line."""
    found: dict[tuple[str, str, str, str, str], list[Verdict]] = {}
    for verdict in view.verdicts:
        claim = verdict.claim
        key = (verdict.variant, claim.kind, claim.statement, claim.expected, verdict.outcome)
        found.setdefault(key, []).append(verdict)
    return tuple(
        EvidenceGroup(
            variant=key[0],
            kind=key[1],
            statement=key[2],
            expected=key[3],
            outcome=key[4],
            verdicts=tuple(verdicts),
        )
        for key, verdicts in found.items()
    )


def sizes_of(verdicts: Iterable[Verdict]) -> str:
    """``start-up``, or the batch sizes that verdicts speak of."""
    sizes = [verdict.batch_size for verdict in verdicts]
    return ", ".join("start-up" if size is None else str(size) for size in sizes)


def blank_reasons(decision: Decision) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Why some corners of the matrix have no winner: each reason once, with where it holds."""
    tolerances = {entry.quality_tolerance for entry in decision.matrix}
    tiers = {entry.tier for entry in decision.matrix}
    found: dict[str, dict[tuple[str, float], list[float]]] = {}
    for entry in decision.matrix:
        if entry.outcome != "winner":
            own = found.setdefault(entry.reason, {})
            own.setdefault((entry.tier, entry.ttft_target_ms), []).append(entry.quality_tolerance)
    made = []
    for reason, corners in found.items():
        words = []
        for (tier, target), limits in corners.items():
            all_of_them = len(limits) == len(tolerances)
            kept = "" if all_of_them else f" at {', '.join(f'{100 * x:g}%' for x in limits)}"
            words.append(f"{f'{tier}, ' if len(tiers) > 1 else ''}{target_words(target)}{kept}")
        made.append((reason, tuple(words)))
    return tuple(made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exclusion:
    """Cells of one variant that may not be recommended for one reason."""

    variant: str
    sizes: str
    reason: str

    @property
    def where(self) -> str:
        """``awq @ 8, 16``, or the variant alone."""
        return f"{self.variant} @ {self.sizes}" if self.sizes else self.variant


def exclusions(decision: Decision) -> tuple[Exclusion, ...]:
    """What may not be recommended; batch sizes with one reason are one entry."""
    several = len({entry.tier for entry in decision.matrix}) > 1
    found: dict[tuple[str, str], list[str]] = {}
    for item in decision.excluded:
        reason = f"{item.reason} ({item.tier})" if several and item.tier else item.reason
        sizes = found.setdefault((item.variant, reason), [])
        sizes += [] if item.batch_size is None else [str(item.batch_size)]
    return tuple(
        Exclusion(variant=variant, sizes=", ".join(sizes), reason=reason)
        for (variant, reason), sizes in found.items()
    )


def task_names(view: RunView) -> tuple[str, ...]:
    """Every task that some variant was scored on."""
    names = (task.task for record in view.quality.values() for task in record.tasks)
    return tuple(dict.fromkeys(names))


def unit_summary(done: QuantizedCheckpoint) -> str:
    """How much output error the method saves over rounding, in one sentence."""
    if not done.units:
        return "No unit errors were recorded."
    error = sum(unit.error for unit in done.units) / len(done.units)
    rtn = sum(unit.rtn_error for unit in done.units) / len(done.units)
    worst = max(done.units, key=lambda unit: unit.error)
    less = f", {percent(1 - error / rtn)} less than rounding's {percent(rtn)}" if rtn > 0 else ""
    return (
        f"Mean relative output error {percent(error)}{less}; "
        f"the worst unit is {worst.unit} at {percent(worst.error)}."
    )


def engine_rows(view: RunView) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """What each engine said of itself at start: (variant, ((name, value), …))."""
    made = []
    for name in view.variants:
        facts, start, engine = view.facts.get(name), view.starts.get(name), view.engines.get(name)
        pairs: list[tuple[str, str]] = []
        if engine is not None:
            pairs.append(("engine", f"{engine.engine} {engine.engine_version} on {engine.device}"))
            scheme, weights = engine.variant.scheme, engine.variant.weights
            pairs.append(("weights", scheme if scheme == weights else f"{scheme} ({weights})"))
        if facts is not None:
            pairs += [
                ("weight kernels", ", ".join(facts.weight_kernels) or DASH),
                ("attention", facts.attention_backend or DASH),
                (
                    "KV cache tokens",
                    number(facts.kv_cache_tokens) if facts.kv_cache_tokens else DASH,
                ),
            ]
        if start is not None:
            pairs.append(("ready after", human_duration(start.ready_s)))
        made.append((name, tuple(pairs)))
    return tuple(made)


def reading_notes(view: RunView) -> tuple[str, ...]:
    """What a reader must know before comparing these figures with others."""
    notes = []
    kinds = {cell.memory_kind for cell in view.cells}
    if "resident" in kinds:
        notes.append("Memory is resident memory on the CPU, not device memory.")
    elif kinds:
        notes.append("Memory is device memory of the server's process tree under load.")
    if view.spec is not None:
        hardware = view.spec.hardware
        source = f": {hardware.price_source}" if hardware.price_source else ""
        notes.append(f"Cost at ${hardware.price_usd_per_hour:,g} an hour{source}.")
    if view.comparisons is not None and view.comparisons.noise_floor is not None:
        noise = _noise_words(view.comparisons, view.comparisons.noise_floor)
        notes.append(
            f"The baseline against itself differed by {noise}; less than that means nothing."
        )
    return (*notes, *_disturbed(view))


def _disturbed(view: RunView) -> Iterator[str]:
    """The cells that were held up."""
    variants = [engine.variant for engine in view.engines.values()]
    cells = [
        f"{item.variant} at {item.batch_size} ({number(item.gap_ms)} ms between tokens, "
        f"{number(item.fuller_gap_ms)} at {item.fuller})"
        for item in latency_anomalies(view.cells, variants)
    ]
    if cells:
        yield (
            f"Held up by something else: {'; '.join(cells)}. More requests in flight never shorten "
            "a step, so measure again before you trust these."
        )


def _noise_words(compared: ComparisonSet, largest: float) -> str:
    """The largest noise floor of throughput, by batch size where they differ, then the others'."""
    floors: dict[str, dict[int, float]] = {"tps_mean": {}}
    for item in compared.comparisons:
        floors.setdefault(item.metric, {})[item.batch_size] = item.noise_floor
    own = floors.pop("tps_mean")
    words = percent(largest)
    if len(set(own.values())) > 1:
        each = ", ".join(f"{percent(floor)} at {size}" for size, floor in sorted(own.items()))
        words = f"up to {words} (by batch size: {each})"
    others = [
        f"up to {percent(max(found.values()))} in {_LATENCIES.get(metric, metric)}"
        for metric, found in floors.items()
    ]
    return ", ".join([f"{words} in throughput", *others])


def warmup_words(view: RunView) -> str:
    """How many requests before a cell are in no figure; their number may differ by cell."""
    counts = sorted({cell.warmup_excluded for cell in view.cells})
    if not counts:
        return ""
    said = plural(counts[0], "warm-up request")
    if len(counts) > 1:
        said = f"{counts[0]} to {plural(counts[-1], 'warm-up request')}"
    return f"{said} before each cell, left out of every figure."


def common_env(view: RunView) -> tuple[tuple[str, str], ...]:
    """What was set for every server alike, so that it is said once."""
    engines = list(view.engines.values())
    first = engines[0].env if engines else ()
    return tuple(pair for pair in first if all(pair in engine.env for engine in engines))


def env_words(env: Iterable[tuple[str, str]]) -> str:
    """Environment variables, quoted for a shell."""
    return " ".join(f"{key}={shlex.quote(value)}" for key, value in env)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Answers that were right on the baseline and that these variants all got wrong alike."""

    variants: str
    baseline: str
    examples: tuple[TaskExample, ...]


def lost_answers(view: RunView) -> tuple[Lost, ...]:
    """Lost answers, once for all variants that share them: the same weights answer the same."""
    found: dict[tuple[str, tuple[TaskExample, ...]], list[str]] = {}
    for name in view.variants:
        record = view.quality.get(name)
        if record is not None and record.examples:
            found.setdefault((record.baseline, record.examples), []).append(name)
    return tuple(
        Lost(variants=", ".join(names), baseline=baseline, examples=examples)
        for (baseline, examples), names in found.items()
    )


def timed_text(view: RunView) -> tuple[DegenerateTraffic, ...]:
    """What was found among each variant's timed answers; none where they were not looked at."""
    return tuple(view.degenerate[name] for name in view.variants if name in view.degenerate)


def timed_text_words(record: DegenerateTraffic) -> str:
    """One sentence: how many answers were looked at, what was found, and the verdict's reason."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in record.found) or "nothing degenerate"
    looked = f"{plural(record.answers, 'timed answer')}: {kinds}"
    clean = record.verdict == "pass" and not record.found
    return looked if clean or record.reason is None else f"{looked}; {record.reason}"


def workload_rows(view: RunView) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each distinct workload: its key and make-up, as texts."""
    return tuple(
        (
            key,
            (
                f"{facts.requests:,}",
                percent(facts.shared_prefix_share),
                percent(facts.long_system_share),
                str(facts.shared_prefixes),
                f"{facts.input_tokens_mean:,.0f}",
                f"{facts.output_tokens_mean:,.0f}",
                percent(facts.expected_hit_rate),
                facts.sha256[:12],
            ),
        )
        for key, facts in view.workloads.items()
    )


WORKLOAD_HEADS = (
    "requests",
    "shared prefix",
    "long system prompt",
    "prefixes",
    "input tokens",
    "output tokens",
    "expected hits",
    "sha256",
)
