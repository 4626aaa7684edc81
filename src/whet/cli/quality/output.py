"""What ``whet quality`` prints and writes: one table, the verdicts, answers that were lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.format import number, percent, plural
from whet.core.records import Estimate, LosslessCheck, QualityRecord, TaskScore, encode
from whet.core.redact import clean, one_line
from whet.core.units import human_duration
from whet.report.text import DASH, shown

if TYPE_CHECKING:
    from whet.flow.gate.baseline import Endpoint
    from whet.flow.gate.golden import GoldenDrift
    from whet.flow.gate.result import GateResult

_STYLES: Final = {"pass": "bold green", "fail": "bold red", "unknown": "bold yellow"}
_EXAMPLES: Final = 3
_EXAMPLE_CHARACTERS: Final = 600
_NOTE_CHARACTERS: Final = 60

Row = tuple[str, str, str, str, str]
"""What is measured, on the baseline, on the target, the change, and what there is to say of it."""


def print_gate(result: GateResult, console: Console) -> None:
    """Print the two sides, the table, the verdicts and up to three lost answers.

    The reason of a verdict other than pass is in the error, which is printed last.
    """
    console.print()
    for name, side in (("target", result.target), ("baseline", result.baseline)):
        if side is not None:
            console.print(Text(f"{name:9} {_side(side)}"), soft_wrap=True)
    console.print()
    console.print(_table(result))
    console.print()
    for tolerance, word in result.verdicts:
        line = Text(f"at {100 * tolerance:g} %: ")
        console.print(line.append(word, _STYLES[word]))
    if result.reason is not None and result.verdict == "pass":
        console.print(Text(f"  {one_line(result.reason)}"), soft_wrap=True)
    _print_examples(result, console)
    seconds = sum(
        record.seconds for record in (result.record, result.baseline_record) if record is not None
    )
    console.print(Text(f"\nasked in {human_duration(seconds)}{_parts(result.record)}", "dim"))
    if result.saved is not None:
        saved = f"baseline saved in {result.saved}; check a deployment against it with --against"
        console.print(Text(saved), soft_wrap=True)


def result_json(result: GateResult) -> dict[str, Any]:
    """Every record, as it is stored in a run, with the verdicts."""
    return {
        "verdict": result.verdict,
        "verdicts": [[tolerance, word] for tolerance, word in result.verdicts],
        "reason": result.reason,
        "target": encode(result.target),
        "baseline": None if result.baseline is None else encode(result.baseline),
        "record": encode(result.record),
        "baseline_record": None
        if result.baseline_record is None
        else encode(result.baseline_record),
        "lm_eval": [encode(score) for score in result.harness],
    }


def print_drift(drift: GoldenDrift, console: Console) -> None:
    """The verdict on golden probes, the figures of the test, and the probes that moved most."""
    console.print(Text("\ngolden probes: ").append(drift.verdict, _STYLES[drift.verdict]))
    if drift.distance is not None and drift.noise is not None and drift.limit is not None:
        p_value = "" if drift.p_value is None else f", p {drift.p_value:.2g}"
        line = (
            f"  {plural(drift.probes, 'probe')}, reference of {plural(drift.starts, 'start')}: "
            f"moved {number(drift.distance)} nats on average (chance alone: {number(drift.noise)}, "
            f"limit {number(drift.limit)}){p_value}; {drift.outside} outside of their interval"
        )
        console.print(Text(line), soft_wrap=True)
    if drift.reason is not None:
        console.print(Text(f"  {one_line(drift.reason)}"), soft_wrap=True)
    for change in drift.changed:
        console.print(Text(f"  {one_line(change)}"), soft_wrap=True)
    for move in drift.moved if drift.verdict != "pass" else ():
        line = f"  {move.id}: token {move.token_id} from {move.before:.4f} to {move.now:.4f}"
        console.print(Text(one_line(line)), soft_wrap=True)


def _table(result: GateResult) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    alone = result.baseline is None
    made.add_column("")
    heads = ("baseline",) if alone else ("baseline", "target", "change")
    for head in heads:
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("", overflow="fold")
    for what, before, here, change, note in _rows(result):
        # A lone baseline is the record itself.
        figures = (here,) if alone else (before, here, change)
        made.add_row(*(Text(one_line(cell)) for cell in (what, *figures, note)))
    return made


def _rows(result: GateResult) -> Iterator[Row]:
    record, before = result.record, result.baseline_record
    base = None if before is None else before.perplexity
    ratio = None if before is None else record.perplexity_ratio
    yield (
        "perplexity",
        shown(base).text,
        shown(record.perplexity).text,
        shown(ratio, unit="+%").full,
        plural(len(record.nll), "document") if record.nll else "not measured",
    )
    if record.distances is not None:
        distances = record.distances
        share = percent(distances.covered)
        coverage = f"top {distances.top_k} tokens, {share} of the baseline's probability"
        yield (
            "KL, mean",
            DASH,
            shown(distances.kl).marked,
            "",
            _noted("nats", distances.kl, coverage),
        )
        yield "KL, p99", DASH, shown(distances.kl_p99).marked, "", "nats"
        flips = shown(distances.flips, unit="%")
        yield "top-1 flips", DASH, flips.marked, "", flips.interval
    for score in record.tasks:
        yield _task(score, () if before is None else before.tasks)
    yield from _structured(record, before)
    yield from _others(record)
    for score in result.harness:
        name, before_it, here, change, note = _task(score, result.baseline_harness)
        yield f"lm-eval {name}", before_it, here, change, note


def _task(score: TaskScore, before: Sequence[TaskScore]) -> Row:
    old = next((task.score for task in before if task.task == score.task), None)
    notes = [plural(score.n, "question")]
    if score.lost is not None:
        notes.append(f"{score.lost} lost, {score.gained} gained")
    if score.p_value is not None:
        notes.append(f"p {score.p_value:.2g}")
    if score.detectable_drop is None:
        notes.append("too few to see a loss")
    else:
        notes.append(f"sees a loss of {100 * score.detectable_drop:.1f} points")
    return (
        score.task,
        _share(old),
        _share(score.score),
        _points(score.difference),
        ", ".join(notes),
    )


def _structured(record: QualityRecord, before: QualityRecord | None) -> Iterator[Row]:
    earlier = {} if before is None else {one.task: one for one in before.structured}
    for one in record.structured:
        old = earlier.get(one.task)
        fits = f"fit free {_of(one.free_valid, one.n)}, right free {_of(one.free_right, one.n)}"
        yield (
            f"{one.task}, bound",
            DASH if old is None or old.right is None else percent(old.right / old.n),
            DASH if one.right is None else percent(one.right / one.n),
            "",
            _short(one.missing or "") or f"fit {_of(one.valid or 0, one.n)}; {fits}",
        )


def _others(record: QualityRecord) -> Iterator[Row]:
    if record.twin_distances is not None and record.twin not in (None, record.variant):
        kl = record.twin_distances.kl
        yield "KL, same weights", DASH, shown(kl).marked, "", _noted("nats", kl)
    if record.identity is not None:
        identity = record.identity
        word = (
            "differ" if identity.problems else "same" if identity.missing is None else "not known"
        )
        problems = (*identity.problems, *([identity.missing] if identity.missing else []))
        note = (
            f"{plural(identity.checked, 'text')} compared" if not problems else _short(problems[0])
        )
        yield "tokens", DASH, word, "", note
    if record.lossless is not None:
        yield "speculation", DASH, record.lossless.verdict, "", _lossless(record.lossless)


def _lossless(check: LosslessCheck) -> str:
    """Name what was compared; the gate's reason has the verdict."""
    results = []
    if check.parity is not None:
        repeat = "" if check.parity.aa_same is None else f" (own repeat: {check.parity.aa_same})"
        results.append(f"greedy {_of(check.parity.same, check.parity.prompts)} the same{repeat}")
    if check.sampling is not None:
        results.append(f"sampled p {check.sampling.p_value:.2g}")
    if check.acceptance_rate is not None:
        results.append(f"{percent(check.acceptance_rate)} of drafts accepted")
    return ", ".join(results) or _short(check.reasons[0])


def _noted(unit: str, value: Estimate, *more: str) -> str:
    interval = shown(value).interval
    return ", ".join([f"{unit}, {interval}" if interval else unit, *more])


def _short(text: str) -> str:
    return text if len(text) <= _NOTE_CHARACTERS else f"{text[:_NOTE_CHARACTERS]}…"


def _print_examples(result: GateResult, console: Console) -> None:
    for lost in result.record.examples[:_EXAMPLES]:
        made = Table(
            title=Text(f"{one_line(lost.task)}: {_cut(one_line(lost.prompt))}"),
            title_justify="left",
            show_lines=False,
        )
        for head in ("expected", "baseline", "target"):
            made.add_column(head, overflow="fold", ratio=1)
        made.add_row(
            *(Text(_cut(clean(text))) for text in (lost.expected, lost.baseline, lost.answer))
        )
        console.print()
        console.print(made)


def _side(side: Endpoint) -> str:
    version = "" if side.engine_version is None else f", {side.engine_version}"
    return one_line(f"{side.ref} ({side.settings or side.model + version})")


def _share(score: Estimate | None) -> str:
    return shown(score, unit="%").text


def _points(change: Estimate | None) -> str:
    if change is None:
        return DASH
    points = f"{100 * change.value:+.1f}"
    if change.low is None or change.high is None:
        return f"{points} pt"
    return f"{points} pt ({100 * change.low:+.1f} … {100 * change.high:+.1f})"


def _of(count: int, whole: int) -> str:
    return f"{count} of {whole}"


def _cut(text: str) -> str:
    """The end, where a question asks and a loop shows."""
    return text if len(text) <= _EXAMPLE_CHARACTERS else f"…{text[-_EXAMPLE_CHARACTERS:]}"


def _parts(record: QualityRecord) -> str:
    parts = _longest(record.parts)
    return f" (of it the target: {', '.join(parts)})" if parts else ""


def _longest(parts: Sequence[tuple[str, float]]) -> list[str]:
    longest = [(name, seconds) for name, seconds in parts if seconds >= 1]
    return [f"{name} {human_duration(seconds)}" for name, seconds in longest]
