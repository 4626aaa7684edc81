"""What a reader gets of a run on one GPU: its files without paths, and a table a batch size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks.table import scrub
from whet.core.store import write_atomic

_SECONDS_AN_HOUR: Final = 3600
BYTES_PER_S: Final = 3.35e12
FLOP_PER_S: Final = 989e12
"""NVIDIA's data sheet of the H100 SXM: HBM3, and dense 16-bit arithmetic."""
_KEPT: Final = ("whet.yaml", "results.csv", "report.md", "decision.json", "environment.json")


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
    from whet.core.store import RunStore
    from whet.flow.conclude import conclude
    from whet.flow.findings import read_kept
    from whet.report import load_run, write_reports

    with RunStore.open(run, resume=True) as store:
        # Of a job, deciding reads these three; a whole one would need the engine and the weights.
        conclude(
            cast(Any, SimpleNamespace(store=store, observer=Silent(), tier=read_kept(store).tier))
        )
        write_reports(load_run(store), run)


def keep_results(run: Path, static: Path | None, out: Path) -> None:
    """Copy what a reader needs from a run to ``out``, without anybody's paths, and its table."""
    conclude_run(run)
    out.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        source = run / ("spec.yaml" if name == "whet.yaml" else name)
        if source.exists():
            write_atomic(out / name, without_paths(source).encode())
    for folder in ("facts", "starts"):
        for source in sorted((run / folder).glob("*.json")):
            write_atomic(out / folder / source.name, without_paths(source).encode())
    rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text(encoding="utf-8"))))
    batches = [] if static is None else static_rows(static)
    if static is not None:
        write_atomic(out / "static.csv", static_csv(batches))
    price = float(rows[0]["price_usd_per_hour"])
    bounds = find_bounds(run, rows)
    write_atomic(out / "table.md", table(rows, batches, price=price, bounds=bounds).encode())


def bound(size: int, *, weight_bytes: float, linear: int, kv_bytes: int, tokens: Tokens) -> float:
    """Requests/s of ``size`` in flight that the device's data sheet allows, no step overlapping.

    A step reads the weights once and the keys and values of every request at its mean length; a
    prompt costs two operations a weight of the linear layers (``linear``) and new token:
    ``size / (out·(W + size·kv·(in + out/2)) / BYTES_PER_S + size·2·linear·new / FLOP_PER_S)``.
    Attention's own arithmetic, the sampler and the host are left out, so it is an upper bound of
    this order of work; overlapping reads with arithmetic could pass it.
    """
    step = (weight_bytes + size * kv_bytes * (tokens.prompt + tokens.out / 2)) / BYTES_PER_S
    prefill = 2 * linear * tokens.new / FLOP_PER_S
    return size / (tokens.out * step + size * prefill)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Mean tokens of a request: its prompt, those of it that no cache had, its answer."""

    prompt: float
    new: float
    out: float


def find_bounds(run: Path, rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, int], float]:
    """``bound`` of every cell without speculation, whose worth depends on the draft."""
    from whet.core.records import ModelFacts, QuantizedCheckpoint, ResolvedEngine, WorkloadFacts
    from whet.core.store import RunStore
    from whet.flow.traffic import workload_key

    store = RunStore.read(run)
    target = store.get("models", "target", ModelFacts)
    if target is None or target.linear_parameters is None or target.kv_bytes_per_token is None:
        return {}
    found = {}
    for row in rows:
        name, size = row["config"], int(row["batch_size"])
        item = store.get("variants", name, ResolvedEngine)
        sent = store.get("workloads", workload_key(size, 0), WorkloadFacts)
        if item is None or sent is None or item.variant.speculation is not None:
            continue
        made = store.get("quantized", item.variant.weights, QuantizedCheckpoint)
        hits = _number(row, "prefix_hit_rate") or 0.0
        found[name, size] = bound(
            size,
            weight_bytes=target.weight_bytes if made is None else made.weight_bytes,
            linear=target.linear_parameters,
            kv_bytes=target.kv_bytes_per_token,
            tokens=Tokens(
                prompt=sent.input_tokens_mean,
                new=sent.input_tokens_mean * (1 - hits),
                out=sent.output_tokens_mean,
            ),
        )
    return found


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
        rate, served = _number(row, "tps_mean"), _number(row, "rps_mean")
        cells = (
            row["config"],
            _show(served, "{:.2f}"),
            _show(rate, "{:,.0f}"),
            _show(_ratio(rate, base), "{:.2f}"),
            _show(_ratio(rate, slow), "{:.1f}"),
            _show(_number(row, "cost_per_1m_tokens"), "{:.3f}"),
            _show(_ratio(served, bounds.get((row["config"], size))), "{:.0%}"),
            _show(_number(row, "ttft_p50_ms"), "{:,.0f}"),
            _show(_number(row, "tpot_p50_ms"), "{:.2f}"),
            _show(_number(row, "acceptance_length"), "{:.2f}"),
            _show(_number(row, "prefix_hit_rate"), "{:.1%}"),
            row["evidence"] if row["status"] == "complete" else row["status"],
        )
        lines.append(_line(cells))
    if naive is not None and slow is not None:
        served = _number(naive, "requests_per_s")
        figures = (_show(served, "{:.2f}"), _show(slow, "{:,.0f}"))
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
