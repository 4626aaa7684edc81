"""The comparison of schemes: sizes, errors, answers, and how each was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records import Distances, QuantizedCheckpoint, SchemeRow, SchemeTable, TaskScore
from whet.core.redact import one_line
from whet.core.spec import SIXTEEN_BIT
from whet.core.units import human_bytes, human_duration
from whet.report.charts.palette import looks
from whet.report.charts.units import Errors, by_kind, own_errors, rounding_errors, unit_charts
from whet.report.document import (
    Bullets,
    Cell,
    Column,
    Document,
    Node,
    Paragraph,
    Row,
    Section,
    Table,
    figure_cell,
    text_cell,
)
from whet.report.text import DASH, EMPTY, Shown, format_time, millinats, shown

_COLUMNS: Final = (
    Column(name="size", figure=True, drop=2),
    Column(name="bits", unit="a weight", figure=True),
    Column(name="perplexity", figure=True, drop=1),
    Column(name="vs 16 bit", figure=True),
    Column(name="KL", unit="millinats", figure=True),
    Column(name="KL p99", unit="millinats", figure=True, drop=6),
    Column(name="flips", figure=True),
    Column(name="tasks", unit="right", figure=True),
    Column(name="tokens/s", figure=True),
    Column(name="serving", unit="memory", figure=True, drop=3),
    Column(name="time", unit="to quantize", figure=True, drop=4),
    Column(name="peak", unit="memory", figure=True, drop=5),
)
_UNIT_ERROR: Final = (
    "‖X(W−Ŵ)ᵀ‖² ÷ ‖XWᵀ‖² of each fused unit on the calibration text: what the rounding of its "
    "weights does to its own output. Rounded activations are not part of it, and units that a "
    "mixed recipe keeps in 16 bit are left out."
)


def scheme_document(table: SchemeTable) -> Document:
    """The whole report."""
    sections = [_schemes(table), _tasks(table), _unit_errors(table), _origins(table)]
    environment = table.environment
    return Document(
        title=table.model,
        facts=[environment.device.name, format_time(environment.started_at)],
        sections=[section for section in sections if section is not None],
    )


def _schemes(table: SchemeTable) -> Section:
    loads = speed_loads(table)
    figures = [_figures(row, loads) for row in table.rows]
    filled = [at for at in range(len(_COLUMNS)) if any(line[at] != EMPTY for line in figures)]
    rows = [
        Row(
            cells=[
                text_cell(row.name),
                *(figure_cell(line[at]) for at in filled),
                text_cell(_short_kernel(_kernel(row))),
            ]
        )
        for row, line in zip(table.rows, figures, strict=True)
    ]
    every = [_with_loads(column, loads) for column in _COLUMNS]
    columns = [Column(name="scheme"), *(every[at] for at in filled), Column(name="kernel")]
    nodes: list[Node] = [Table(caption="Schemes", columns=columns, rows=rows)]
    if missing := missing_sentences(table):
        nodes.append(Bullets(items=missing, tone="muted"))
    for words in (_measured_on(table), _speed_sentence(table)):
        if words:
            nodes.append(Paragraph(text=words, tone="muted"))
    return Section(
        id="schemes", title="Every scheme", group="Schemes", nodes=nodes, on_console=True
    )


def _figures(row: SchemeRow, loads: Sequence[int]) -> tuple[Shown, ...]:
    distances, done = row.distances, row.checkpoint
    memory = None if row.served is None else row.served.memory_bytes
    peak = None if done is None else done.peak_memory_bytes
    return (
        EMPTY if row.weight_bytes is None else Shown(text=human_bytes(row.weight_bytes)),
        EMPTY if row.bits_per_weight is None else Shown(text=f"{row.bits_per_weight:.2f}"),
        shown(row.perplexity),
        shown(distances.perplexity_ratio, unit="+%") if distances else EMPTY,
        shown(millinats(distances.kl)) if distances else EMPTY,
        shown(millinats(distances.kl_p99)) if distances else EMPTY,
        shown(distances.flips, unit="%") if distances else EMPTY,
        _share(row.served.tasks if row.served else ()),
        _speeds(row, loads),
        EMPTY if memory is None else Shown(text=human_bytes(memory)),
        Shown(text=human_duration(done.seconds)) if done else EMPTY,
        EMPTY if peak is None else Shown(text=human_bytes(peak)),
    )


def _share(tasks: Sequence[TaskScore]) -> Shown:
    """Right answers over all tasks, with the answers that were lost and gained."""
    count, right = sum(task.n for task in tasks), sum(task.right for task in tasks)
    if not count:
        return EMPTY
    paired = [(task.lost or 0, task.gained or 0) for task in tasks if task.lost is not None]
    change = ""
    if paired and any(task.p_value is not None for task in tasks):
        change = f"−{sum(lost for lost, _ in paired)} +{sum(gained for _, gained in paired)}"
    return Shown(text=percent(right / count), interval=change)


def speed_loads(table: SchemeTable) -> tuple[int, ...]:
    """The loads of the table's speeds, the same for every row."""
    every = {each.load for row in table.rows if row.served for each in row.served.speeds}
    return tuple(sorted(every))


def _with_loads(column: Column, loads: Sequence[int]) -> Column:
    """The column of speeds under its loads: ``at 1 / 8``."""
    if column.name != "tokens/s":
        return column
    return replace(column, unit=f"at {' / '.join(map(str, loads))}")


def _speeds(row: SchemeRow, loads: Sequence[int]) -> Shown:
    """``102 / 640``, one figure a load."""
    rates = {each.load: each.output_tps for each in row.served.speeds} if row.served else {}
    if all(rate is None for rate in rates.values()):
        return EMPTY
    texts = (DASH if (rate := rates.get(load)) is None else number(rate) for load in loads)
    return Shown(text=" / ".join(texts))


def _kernel(row: SchemeRow) -> str:
    if row.served is None:
        return DASH
    return ", ".join(dict.fromkeys(k.split(" ")[0] for k in row.served.kernels)) or "none named"


def _short_kernel(kernel: str) -> str:
    """``Machete`` for ``MacheteLinearKernel``."""
    return one_line(kernel).replace("LinearKernel", "")


def row_notes(row: SchemeRow) -> tuple[str, ...]:
    """Why figures are missing, and what the quantizer or the server warned of."""
    server_reason = row.served.reason if row.served else None
    reasons = (
        ("not made", row.not_made),
        ("not measured", row.not_measured),
        ("not served", row.not_served),
        ("on the server", server_reason),
    )
    warnings = row.checkpoint.warnings if row.checkpoint else ()
    speeds = row.served.speeds if row.served else ()
    return (
        *(f"{words}: {reason}" for words, reason in reasons if reason),
        *(f"no tokens/s at {each.load}: {each.reason}" for each in speeds if each.reason),
        *warnings,
    )


def missing_sentences(table: SchemeTable) -> list[str]:
    """What is missing and why; a sentence that several rows share is one."""
    names: dict[str, list[str]] = {}
    for row in table.rows:
        for sentence in row_notes(row):
            names.setdefault(sentence, []).append(row.name)
    every = len(table.rows)
    return [
        f"{'every row' if len(own) == every else ', '.join(own)}: {sentence}"
        for sentence, own in names.items()
    ]


def _measured_on(table: SchemeTable) -> str:
    """The held-out text, the tasks and what the forward rounded."""
    distances = next((row.distances for row in table.rows if row.distances is not None), None)
    sentences = []
    if distances is not None:
        positions = sum(each.tokens for each in distances.documents)
        sentences.append(
            f"Perplexity, KL and flips on {plural(len(distances.documents), 'document')} "
            f"({number(positions)} positions) of {table.heldout}, {_measured_by(distances)}."
        )
    task_run = next((row.served for row in table.rows if row.served is not None), None)
    if task_run is not None:
        count = sum(task.n for task in task_run.tasks)
        sentences.append(
            f"Tasks: {plural(count, 'question')}, answered greedily by {task_run.engine}."
        )
    return " ".join(sentences)


def _measured_by(distances: Distances) -> str:
    if distances.top_k is None or distances.covered is None:
        return (
            "both models in float32 with transformers; activations and FP8 keys and values are "
            "rounded as the checkpoint says"
        )
    return (
        "measured on the servers, each in its own arithmetic: KL over the "
        f"{distances.top_k} likeliest tokens and the rest as one, a lower bound (the tokens "
        f"compared have {percent(distances.covered)} of the 16-bit probability on average)"
    )


def _speed_sentence(table: SchemeTable) -> str:
    """What tokens/s and serving memory are of, and what they cannot say."""
    speeds = [each for row in table.rows if row.served for each in row.served.speeds]
    windows = [each.window_s for each in speeds if each.window_s is not None]
    if not windows:
        return ""
    loads = " and ".join(map(str, speed_loads(table)))
    words = (
        f"Tokens/s: output tokens with {loads} requests in flight, over {min(windows):.1f} s or "
        "more, on generated requests without the prefix cache. Each scheme has one start of its "
        "server, so there is no interval, and small differences say nothing. Serving memory is "
        "the server's highest under that load, with the KV cache that the engine reserves"
    )
    if any(row.served.engine.endswith("on cuda") for row in table.rows if row.served):
        words += ": on a GPU up to a fixed share of the device, whatever the scheme"
    return f"{words}."


def _tasks(table: SchemeTable) -> Section | None:
    task_runs = [(row.name, row.served) for row in table.rows if row.served is not None]
    names = list(dict.fromkeys(task.task for _, each in task_runs for task in each.tasks))
    if not names:
        return None
    rows = []
    for name, each in task_runs:
        scores = {task.task: task for task in each.tasks}
        cells = [_score(scores.get(task)) for task in names]
        rows.append(Row(cells=[text_cell(name), *cells, figure_cell(each.perplexity)]))
    columns = [Column(name="scheme"), *(Column(name=task, figure=True) for task in names)]
    columns.append(Column(name="served perplexity", figure=True))
    words = (
        "Right answers; − lost, + gained against the 16-bit answers to the same questions, p by "
        "McNemar’s exact test."
    )
    nodes: list[Node] = [
        Paragraph(text=words, tone="muted"),
        Table(caption="Tasks", columns=columns, rows=rows),
    ]
    return Section(id="tasks", title="Tasks", group="Tasks", nodes=nodes)


def _score(score: TaskScore | None) -> Cell:
    if score is None:
        return text_cell(None)
    words = f"{score.right} of {score.n}"
    if score.p_value is not None:
        words += f"; −{score.lost} +{score.gained}, p = {number(score.p_value)}"
    return Cell(text=shown(score.score, unit="%").text, detail=words)


def _unit_errors(table: SchemeTable) -> Section | None:
    names = [row.name for row in table.rows]
    charts = list(unit_charts(scheme_errors(table), looks(names, SIXTEEN_BIT), prefix="schemes"))
    if not charts:
        return None
    return Section(
        id="units",
        title="Output error, layer by layer",
        group="Errors",
        nodes=[Paragraph(text=_UNIT_ERROR, tone="muted"), *charts],
    )


def scheme_errors(table: SchemeTable) -> dict[str, Errors]:
    """The errors of every scheme that has some."""
    errors = {row.name: _errors(table, row.checkpoint) for row in table.rows if row.checkpoint}
    return {name: own for name, own in errors.items() if own}


def _errors(table: SchemeTable, done: QuantizedCheckpoint) -> Errors:
    """The errors of one scheme.

    Rounding to nearest measures nothing itself: its errors are what another scheme of the same grid
    measured of rounding.
    """
    if done.units or done.method != "rtn":
        if done.kept_scheme != SIXTEEN_BIT:
            return own_errors(done)
        quantized = by_kind(unit for unit in done.units if not unit.kept).items()
        return {kind: [(at, unit.error) for at, unit in items] for kind, items in quantized}
    for row in table.rows:
        other = row.checkpoint
        same = other and (other.scheme, other.group_size) == (done.scheme, done.group_size)
        if other is not None and same and other.units:
            return rounding_errors(other)
    return {}


def _origins(table: SchemeTable) -> Section:
    heads = ("scheme", "recipe", "calibration", "seconds by phase", "device", "weights sha256")
    rows = [
        Row(cells=[text_cell(value) for value in _origin(row, row.checkpoint)])
        for row in table.rows
        if row.checkpoint is not None
    ]
    source, host = table.source, table.environment
    packages = ", ".join(f"{name} {version}" for name, version in host.packages)
    facts = [
        f"source: {source.architecture}, {number(source.parameters)} parameters, "
        f"{source.stored.dtype}, weights sha256 {source.weights_sha256[:12]}",
        f"host: {host.cpu}, {plural(host.cpu_count, 'core')}, {human_bytes(host.ram_bytes)}",
        f"packages: {packages}",
    ]
    columns = [Column(name=name) for name in heads]
    nodes: list[Node] = [Table(caption="Origin", columns=columns, rows=rows), Bullets(items=facts)]
    return Section(id="origin", title="How each was written", group="Origin", nodes=nodes)


def _origin(row: SchemeRow, done: QuantizedCheckpoint) -> Iterator[str]:
    text = done.calibration
    yield row.name
    yield row.title
    yield (
        "none"
        if text is None
        else f"{plural(text.samples, 'sample')}, {number(text.tokens)} tokens, seed {text.seed}"
    )
    yield ", ".join(f"{phase.name} {phase.seconds:.1f}" for phase in done.phases)
    yield done.device
    yield done.weights_sha256[:12]
