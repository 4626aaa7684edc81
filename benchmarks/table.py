"""The rows of the quantizer table: CSV files without anybody's paths, and README's summary."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.distance import Distances
from benchmarks.jobs import Spent
from whet.core.records import DocumentDistance
from whet.core.redact import redact
from whet.core.store import write_atomic
from whet.core.units import GIB
from whet.quality.perplexity import document_mean, perplexity_ratio

_PATH: Final = re.compile(r"(?<![\w/])~?(?:/[\w.+@=,-]+)+/([\w.+@=,-]+)/?")
_DIGITS: Final = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One quantizer run: what was asked, where the time went, what came out.

    ``without_loading_s`` is work and saving. ``peak_memory_gib`` is the device's, sampled from
    outside, or on a CPU the process' resident memory, as ``memory_kind`` says.
    """

    tool: str
    method: str
    scheme: str
    group_size: int
    seed: int
    model: str
    device: str
    threads: int
    calibration_samples: int | None = None
    calibration_tokens: int | None = None
    compute_dtype: str | None = None
    peer_batch: int | None = None
    import_s: float | None = None
    load_s: float | None = None
    work_s: float | None = None
    save_s: float | None = None
    without_loading_s: float | None = None
    total_s: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: str | None = None
    allocated_gib: float | None = None
    bits_per_weight: float | None = None
    weight_bytes: int | None = None
    perplexity: float | None = None
    perplexity_low: float | None = None
    perplexity_high: float | None = None
    reference_perplexity: float | None = None
    perplexity_ratio: float | None = None
    perplexity_ratio_low: float | None = None
    perplexity_ratio_high: float | None = None
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    kl_p99: float | None = None
    flips: float | None = None
    flips_low: float | None = None
    flips_high: float | None = None
    heldout_documents: int | None = None
    heldout_tokens: int | None = None
    phases: str | None = None
    versions: str | None = None
    started_at: str | None = None
    git_commit: str | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRow:
    """Two tools' results of one seed on the same held-out documents.

    The ratio is of perplexities and the difference of mean KL, this project's to the peer's:
    below 1 and below 0 it is the better one. Intervals resample the documents of both together.
    """

    seed: int
    method: str
    peer_method: str
    perplexity_ratio: float
    perplexity_ratio_low: float | None
    perplexity_ratio_high: float | None
    kl_difference: float
    kl_difference_low: float | None
    kl_difference_high: float | None
    seconds_ratio: float | None


def spent_values(spent: Spent, device: str) -> dict[str, object]:
    """The columns that a finished process fills."""
    allocated = spent.allocated_bytes
    return {
        "calibration_samples": spent.samples or None,
        "calibration_tokens": spent.tokens or None,
        "import_s": spent.import_s,
        "load_s": spent.load_s,
        "work_s": spent.work_s,
        "save_s": spent.save_s,
        "without_loading_s": spent.work_s + spent.save_s,
        "total_s": spent.total_s,
        "peak_memory_gib": spent.peak_bytes / GIB,
        "memory_kind": "process" if device == "cpu" else "device",
        "allocated_gib": None if allocated is None else allocated / GIB,
        "phases": " ".join(f"{name}={seconds:.2f}" for name, seconds in spent.phases) or None,
        "versions": " ".join(f"{name}={version}" for name, version in spent.versions),
    }


def distance_values(distances: Distances) -> dict[str, object]:
    """The columns that the held-out text fills."""
    values: dict[str, object] = {
        "reference_perplexity": distances.reference_perplexity.value,
        "kl_p99": distances.kl_p99.value,
        "heldout_documents": len(distances.documents),
        "heldout_tokens": sum(one.tokens for one in distances.documents),
    }
    for name in ("perplexity", "perplexity_ratio", "kl", "flips"):
        estimate = getattr(distances, name)
        values |= {
            name: estimate.value,
            f"{name}_low": estimate.low,
            f"{name}_high": estimate.high,
        }
    return values


def pair(ours: Row, peer: Row, documents: tuple[Distances, Distances]) -> PairRow:
    """``ours`` beside ``peer``, whose ``documents`` are the same ones in the same order."""
    here, there = (each.documents for each in documents)
    ratio = perplexity_ratio(_nll(here), _nll(there))
    kl = document_mean([(a.kl - b.kl, a.tokens) for a, b in zip(here, there, strict=True)])
    both = ours.without_loading_s, peer.without_loading_s
    return PairRow(
        seed=ours.seed,
        method=ours.method,
        peer_method=peer.method,
        perplexity_ratio=ratio.value,
        perplexity_ratio_low=ratio.low,
        perplexity_ratio_high=ratio.high,
        kl_difference=kl.value,
        kl_difference_low=kl.low,
        kl_difference_high=kl.high,
        seconds_ratio=both[1] / both[0] if both[0] and both[1] else None,
    )


def _nll(documents: Sequence[DocumentDistance]) -> list[tuple[float, int]]:
    return [(one.nll, one.tokens) for one in documents]


def write_rows(rows: Sequence[Any], path: Path) -> None:
    """One line a row of any kind, atomically; what a row lacks is an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO(newline="")
    names = dict.fromkeys(name for row in rows for name in asdict(row))
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = asdict(row)
        writer.writerow(_field(values.get(name)) for name in names)
    write_atomic(path, buffer.getvalue().encode())


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    return scrub(value) if isinstance(value, str) else str(value)


def scrub(text: str) -> str:
    """One line of ``text``, its secrets replaced and its absolute paths cut to their last name."""
    return without_folders(redact(" ".join(text.split())))


def without_folders(text: str, *, before: str = "") -> str:
    """``text`` with its absolute paths cut to their last name, with ``before`` in front."""
    return _PATH.sub(rf"{before}\1", text)


def summary(rows: Sequence[Row]) -> str:
    """A markdown table: a line for each tool and method, the mean over seeds with its range."""
    lines = [
        "| quantizer | seeds | s without loading | s in all | peak GiB | bits | perplexity "
        "(×16 bit) | KL ×10³ | flips % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(map(_name, rows)):
        group = [row for row in rows if _name(row) == name]
        made = [row for row in group if row.failure is None]
        if not made:
            lines.append(f"| {name} | 0 | {scrub(group[0].failure or '')} |  |  |  |  |  |  |")
            continue
        cells = [
            spread([row.without_loading_s for row in made], 1),
            spread([row.total_s for row in made], 1),
            spread([row.peak_memory_gib for row in made], 2),
            spread([row.bits_per_weight for row in made], 3),
            spread([row.perplexity_ratio for row in made], 4),
            spread([row.kl and row.kl * 1e3 for row in made], 2),
            spread([row.flips and row.flips * 100 for row in made], 2),
        ]
        lines.append(f"| {name} | {len(made)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _name(row: Row) -> str:
    """Tool and method of a line; the batch where it is not the peer's default.

    This project's searches end with a refit of scales and codes, which published AWQ and GPTQ lack.
    """
    batch = f", batch {row.peer_batch}" if row.peer_batch not in (None, 1) else ""
    refit = " + refit" if row.tool == "whet" and row.method != "rtn" else ""
    return f"{row.tool} {row.method}{refit}{batch}"


def spread(values: Sequence[float | None], digits: int) -> str:
    """``mean (lowest–highest)``; one value alone if they print alike, – without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, low, high = (
        f"{value:.{digits}f}" for value in (sum(known) / len(known), min(known), max(known))
    )
    return mean if low == high else f"{mean} ({low}–{high})"
