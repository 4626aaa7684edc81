"""What a reader gets of a run on one GPU: its files without paths, and a table a batch size."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.table import scrub

from whet.core.store import write_atomic

if TYPE_CHECKING:
    from whet.core.records import ModelFacts
    from whet.core.records.engine import Speculation

_SECONDS_AN_HOUR: Final = 3600
BYTES_PER_S: Final = 3.35e12
FLOP_PER_S: Final = 989e12
FLOP_PER_S_8BIT: Final = 1979e12
"""NVIDIA's data sheet of the H100 SXM: HBM3, dense 16-bit and dense 8-bit arithmetic."""
HEAD_8BIT: Final = "eagle3-fp8"
"""The EAGLE-3 head of the testbed with its layers in FP8."""
_FILES: Final = ("whet.yaml", "results.csv", "report.md", "decision.json", "environment.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticRow:
    """Naive static batching: ``batches`` of ``batch_size``, each after the slowest of the last."""

    batch_size: int
    batches: int
    seconds: float
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens_mean: float
    dtype: str
    attention: str
    transformers: str


def static_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a ``static.csv``; none where there is no such file yet."""
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def conclude_run(run: Path) -> None:
    """Decide and report from what a run has, also where a sitting ended in the middle of it."""
    from whet.core.protocols import Silent
    from whet.core.run import Run
    from whet.core.store import RunStore
    from whet.flow.run.conclude import conclude
    from whet.report.run.files import write_reports

    with RunStore.open(run, resume=True) as store:
        conclude(store, Silent())
        write_reports(Run(store), run)


def keep_results(run: Path, static: Path | None, out: Path) -> None:
    """Copy what a reader needs from a run to ``out``, without anybody's paths, and its table."""
    conclude_run(run)
    out.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        source = run / ("spec.yaml" if name == "whet.yaml" else name)
        if source.exists():
            write_atomic(out / name, without_paths(source).encode())
    for folder in ("facts", "starts"):
        for source in sorted((run / folder).glob("*.json")):
            write_atomic(out / folder / source.name, without_paths(source).encode())
    write_atomic(out / "run_cards.md", run_cards(run).encode())
    rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text(encoding="utf-8"))))
    batches = [] if static is None else static_rows(static)
    if static is not None:
        write_atomic(out / "static.csv", static_csv(batches))
    price = float(rows[0]["price_usd_per_hour"])
    bounds = find_bounds(run, rows)
    write_atomic(out / "table.md", table(rows, batches, price=price, bounds=bounds).encode())
    write_plot(out / "factors.svg", rows)


def run_cards(run: Path) -> str:
    """What ran under each variant's name: engine, kernels, graphs, room for KV, the command."""
    from whet.core.records import EngineFacts, ResolvedEngine, StartFacts
    from whet.core.store import RunStore

    store, cards = RunStore.read(run), []
    for item in store.all("variants", ResolvedEngine):
        name = item.variant.name
        facts, start = store.get("facts", name, EngineFacts), store.get("starts", name, StartFacts)
        if facts is None or start is None:
            continue
        facts_by_name = {
            "engine": f"vLLM {facts.version} on {item.device}",
            "weights": ", ".join(facts.weight_kernels) or item.variant.scheme,
            "attention": facts.attention_backend,
            "asynchronous scheduling": _on_or_off(facts.async_scheduling),
            "API servers": facts.api_servers or 1,
            "KV cache": f"{facts.kv_cache_tokens or 0:,} tokens",
            "ready after": f"{start.ready_s:.0f} s",
        }
        lines = [f"- {key}: {value}" for key, value in facts_by_name.items() if value is not None]
        lines += [f"- said: {notice}" for notice in facts.notices]
        command = scrub(item.serve_line)
        cards.append("\n".join([f"## {name}", "", *lines, "", "```text", command, "```", ""]))
    return "# Run cards\n\n" + "\n".join(cards)


def _on_or_off(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a model's step costs: bytes of weights, linear weights, bytes of KV a token.

    ``flop_per_s`` is the peak of the arithmetic that its kernels use.
    """

    weight_bytes: float
    linear: int
    kv_bytes: int
    flop_per_s: float = FLOP_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Drafting:
    """K proposals per step, ``length`` − 1 of them accepted on average, and the cost of one."""

    proposals: int
    length: float
    weight_bytes: float = 0.0
    linear: int = 0
    flop_per_s: float = FLOP_PER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Mean tokens of a request: its prompt, those of it that no cache had, its answer."""

    prompt: float
    new: float
    out: float


def bound(size: int, work: Work, tokens: Tokens, drafting: Drafting | None = None) -> float:
    """Requests/s of ``size`` in flight that the device's data sheet allows: its roofline.

    ``out`` tokens take ``out / length`` steps. A step reads the weights once, the draft's once a
    proposal, and every request's keys and values at its mean length; it computes two operations a
    linear weight for each of 1 + K tokens, as for a new prompt token. Either the reads fill the
    time or the arithmetic does, whichever is more, the other hidden behind it:
    ``size / max(Σ bytes / BYTES_PER_S, Σ operations / peak)``. Attention's own arithmetic, the
    sampler and the host are left out.
    """
    draft = drafting or Drafting(proposals=0, length=1.0)
    steps = tokens.out / draft.length
    context = tokens.prompt + tokens.out / 2
    read = steps * (
        work.weight_bytes + draft.proposals * draft.weight_bytes + size * work.kv_bytes * context
    )
    targets = tokens.new + steps * (1 + draft.proposals)
    drafts = tokens.new + steps * draft.proposals
    seconds = 2 * size * work.linear * targets / work.flop_per_s
    seconds += 2 * size * draft.linear * drafts / draft.flop_per_s
    return size / max(read / BYTES_PER_S, seconds)


def find_bounds(run: Path, rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, int], float]:
    """``bound`` of every cell, but for drafts whose cost is not known here."""
    from whet.core.records import ModelFacts, QuantizedCheckpoint, ResolvedEngine, WorkloadFacts
    from whet.core.store import RunStore
    from whet.flow.run.workload import workload_key

    store = RunStore.read(run)
    target = store.get("models", "target", ModelFacts)
    draft = store.get("models", "draft", ModelFacts)
    if target is None or target.linear_parameters is None or target.kv_bytes_per_token is None:
        return {}
    figures = {}
    for row in rows:
        name, size = row["config"], int(row["batch_size"])
        item = store.get("variants", name, ResolvedEngine)
        sent = store.get("workloads", workload_key(size, 0), WorkloadFacts)
        if item is None or sent is None:
            continue
        variant = item.variant
        drafting = None
        if variant.speculation is not None:
            drafting = _drafting(variant.speculation, _number(row, "acceptance_length"), draft)
            if drafting is None:
                continue
        made = store.get("quantized", variant.weights, QuantizedCheckpoint)
        half = dict(variant.engine_args).get("kv_cache_dtype") == "fp8"
        eight = variant.scheme.startswith(("FP8", "W8A8"))
        work = Work(
            weight_bytes=target.weight_bytes if made is None else made.weight_bytes,
            linear=target.linear_parameters,
            kv_bytes=target.kv_bytes_per_token // (2 if half else 1),
            flop_per_s=FLOP_PER_S_8BIT if eight else FLOP_PER_S,
        )
        tokens = Tokens(
            prompt=sent.input_tokens_mean,
            new=sent.input_tokens_mean * (1 - (_number(row, "prefix_hit_rate") or 0.0)),
            out=sent.output_tokens_mean,
        )
        figures[name, size] = bound(size, work, tokens, drafting)
    return figures


def _drafting(
    speculation: Speculation, length: float | None, draft: ModelFacts | None
) -> Drafting | None:
    from whet.demo import pair_paths
    from whet.demo.eagle import read_head
    from whet.demo.shapes import find_sizes

    if length is None:
        return None
    if speculation.method == "eagle3":  # its embedding is looked up, its fc used once a step
        head = read_head(pair_paths()[1], find_sizes("7b"))
        unread = ("embed_tokens.weight", "fc.weight")
        read = {n: math.prod(shape) for n, shape in head.plan.shapes() if n not in unread}
        linear, wide = sum(read.values()), read["lm_head.weight"]
        eight = Path(speculation.draft_path or "").name == HEAD_8BIT  # but for its vocabulary
        return Drafting(
            proposals=speculation.num_tokens,
            length=length,
            weight_bytes=linear + wide if eight else 2 * linear,
            linear=linear,
            flop_per_s=FLOP_PER_S_8BIT if eight else FLOP_PER_S,
        )
    if speculation.method == "draft_model" and draft is not None and draft.linear_parameters:
        return Drafting(
            proposals=speculation.num_tokens,
            length=length,
            weight_bytes=draft.weight_bytes,
            linear=draft.linear_parameters,
        )
    return None


def without_paths(path: Path) -> str:
    """The text of a file line by line, indents kept."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "".join(f"{line[: len(line) - len(line.lstrip())]}{scrub(line)}\n" for line in lines)


def table(
    rows: Iterable[Mapping[str, str]],
    static: Sequence[Mapping[str, str]],
    *,
    price: float,
    bounds: Mapping[tuple[str, int], float] | None = None,
) -> str:
    """One Markdown table a batch size, the fastest variant first.

    ``rows`` are those of ``results.csv``, ``static`` those of ``static.csv``; ``price`` is in US
    dollars an hour. Factors are of output tokens/s; a cell that is not complete has a word instead.
    """
    by_size: dict[int, list[Mapping[str, str]]] = {}
    for row in rows:
        by_size.setdefault(int(row["batch_size"]), []).append(row)
    naive = {int(row["batch_size"]): row for row in static}
    lines = (
        _one_size(size, by_size[size], naive.get(size), price=price, bounds=bounds or {})
        for size in sorted(by_size)
    )
    return "\n".join(lines)


_NAMED: Final = (
    *("fp8+cache+tuned", "awq+cache", "awq", "awq+spec+cache.k2", "fp16+cache"),
    "awq+eagle8+cache+marlin",
)
"""Single levers, and what leads where traffic does not repeat itself: the plot names them beside
the variants that lead somewhere."""


def write_plot(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Output tokens/s over the plain 16-bit server's, a line a variant, over requests in flight.

    Named are those that are the best at some size, and the single levers; the rest is grey.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figures: dict[str, dict[int, float]] = {}
    for row in rows:
        if (rate := _number(row, "tps_mean")) is not None:
            figures.setdefault(row["config"], {})[int(row["batch_size"])] = rate
    base = figures.pop("fp16")
    sizes = sorted(base)
    best = {max(figures, key=lambda name: figures[name].get(size, 0.0)) for size in sizes}
    last = sorted(figures.items(), key=lambda item: -item[1].get(sizes[-1], 0.0))
    with mpl.rc_context({"svg.hashsalt": "whet", "font.size": 9}):
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for name, cells in last:
            points = [(size, cells[size] / base[size]) for size in sizes if size in cells]
            look: dict[str, Any] = {"color": "0.85", "linewidth": 0.8, "zorder": 1}
            if name in best or name in _NAMED:
                style = "-" if name in best else "--"
                look = {"label": name, "marker": "o", "markersize": 3, "linestyle": style}
            axes.plot(*zip(*points, strict=True), **look)
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set(xlabel="requests in flight", ylabel="× the plain 16-bit server", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    write_atomic(path, text.getvalue().encode())


_HEAD: Final = (
    "variant",
    "requests/s",
    "output tokens/s",
    "× 16-bit",
    "× static",
    "$ per 1M tokens",
    "of the bound",
    "TTFT p50, ms",
    "TPOT p50, ms",
    "accepted/step",
    "prefix hits",
    "evidence",
)


def _one_size(
    size: int,
    rows: Sequence[Mapping[str, str]],
    naive: Mapping[str, str] | None,
    *,
    price: float,
    bounds: Mapping[tuple[str, int], float],
) -> str:
    base = next((_number(row, "tps_mean") for row in rows if row["config"] == "fp16"), None)
    slow = None if naive is None else _number(naive, "output_tokens_per_s")
    lines = [f"### {size} in flight", "", _line(_HEAD)]
    lines.append("|---|" + "--:|" * (len(_HEAD) - 2) + "---|")
    for row in sorted(rows, key=lambda row: -(_number(row, "tps_mean") or 0.0)):
        rate, request_rate = _number(row, "tps_mean"), _number(row, "rps_mean")
        cells = (
            row["config"],
            _show(request_rate, "{:.2f}"),
            _show(rate, "{:,.0f}"),
            _show(_ratio(rate, base), "{:.2f}"),
            _show(_ratio(rate, slow), "{:.1f}"),
            _show(_number(row, "cost_per_1m_tokens"), "{:.3f}"),
            _show(_ratio(request_rate, bounds.get((row["config"], size))), "{:.0%}"),
            _show(_number(row, "ttft_p50_ms"), "{:,.0f}"),
            _show(_number(row, "tpot_p50_ms"), "{:.2f}"),
            _show(_number(row, "acceptance_length"), "{:.2f}"),
            _show(_number(row, "prefix_hit_rate"), "{:.1%}"),
            row["evidence"] if row["status"] == "complete" else row["status"],
        )
        lines.append(_line(cells))
    if naive is not None and slow is not None:
        request_rate = _number(naive, "requests_per_s")
        figures = (_show(request_rate, "{:.2f}"), _show(slow, "{:,.0f}"))
        ratios = (_show(_ratio(slow, base), "{:.2f}"), "1.0", f"{cost(slow, price):.3f}")
        rest = (*("–" for _ in range(5)), "timed here")
        lines.append(_line(("transformers, static", *figures, *ratios, *rest)))
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cost(tokens_per_s: float, price: float) -> float:
    """US dollars for a million output tokens at ``price`` an hour."""
    return price / _SECONDS_AN_HOUR / tokens_per_s * 1e6


def _number(row: Mapping[str, str], key: str) -> float | None:
    return float(row[key]) if row.get(key) else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _show(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def static_csv(rows: Sequence[Mapping[str, str]]) -> bytes:
    """A ``static.csv``'s bytes, the columns in the order of ``StaticRow``."""
    text = io.StringIO(newline="")
    made = csv.DictWriter(text, list(StaticRow.__dataclass_fields__), lineterminator="\n")
    made.writeheader()
    made.writerows(rows)
    return text.getvalue().encode()
