"""Predicted latencies beside measured ones: the tables of docs/accuracy.md.

    python -m benchmarks.accuracy add RUN --group NAME [--fitted VARIANT …] [--outside VARIANT …]
    python -m benchmarks.accuracy fit GPU
    python -m benchmarks.accuracy page

``add`` takes the cells of a run into ``results/foresight/observations.jsonl.xz``; those of the
variants after ``--fitted`` may be fitted to, all others are held out; those after ``--outside`` are
what ``whet plan`` does not propose, and shown apart. ``fit`` writes the GPU's coefficients into the
package, with the errors of what is held out.
``page`` predicts every cell with them and writes ``results/foresight/accuracy.csv`` and the tables,
with what AIConfigurator predicted (``peer.csv``).
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.fit import fit, predict_latencies
from whet.core.records.codec import decode, encode
from whet.core.run import Run
from whet.predict.hardware import CUDA, known_name
from whet.predict.performance.coefficients import Coefficients, calibration_of
from whet.predict.performance.observe import Observation, observation_of

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "results" / "foresight"
PAGE: Final = ROOT / "docs" / "accuracy.md"
CALIBRATIONS: Final = ROOT / "src" / "whet" / "predict" / "performance" / "calibrations.json"
_BEGIN: Final = "<!-- made by benchmarks/accuracy.py -->\n"
_METRICS: Final = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One stored cell: its run, its GPU; ``part`` is ``fitted``, ``held out`` or ``outside``."""

    group: str
    gpu: str
    engine: str
    part: str
    observation: Observation


def stored() -> list[Row]:
    """Every cell, in the order in which they were added."""
    path = FOLDER / "observations.jsonl.xz"
    if not path.exists():
        return []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [decode(Row, json.loads(line)) for line in file]


def add(root: Path, group: str, fitted: Sequence[str], outside: Sequence[str]) -> None:
    """Take a run's cells in, in place of an earlier state of the same group."""
    run = Run.read(root)
    gpu = known_name(run.require_environment().device)
    assert gpu is not None, "the run's GPU is not one of whet.predict.hardware"
    engine = f"vLLM {next(iter(run.engines.values())).engine_version}"
    rows = [row for row in stored() if row.group != group]
    for each in observations_of(run):
        variant = each.group.rpartition(" ")[2]
        rows.append(
            Row(
                group=group,
                gpu=gpu,
                engine=engine,
                part="fitted"
                if variant in fitted
                else "outside"
                if variant in outside
                else "held out",
                observation=replace(each, group=variant),
            )
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    with lzma.open(FOLDER / "observations.jsonl.xz", "wt", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(encode(row), separators=(",", ":")) + "\n")
    print(f"{group}: {sum(row.group == group for row in rows)} cells of {len(rows)}")


def observations_of(run: Run) -> list[Observation]:
    """Every trial that can be one."""
    device = run.require_environment().device
    return [
        observation for trial in run.trials for observation in observation_of(run, trial, device)
    ]


def write_coefficients(gpu: str) -> None:
    """Fit to the rows that may be fitted to; errors are those of the rows held out."""
    rows = [row for row in stored() if row.gpu == gpu]
    own = [row.observation for row in rows if row.part == "fitted"]
    coefficients = fit(own, CUDA[gpu].sheet)
    held_out = [row.observation for row in rows if row.part == "held out"]
    errors: dict[str, list[float]] = {name: [] for name in _METRICS}
    for each in held_out:
        for name, error in _errors(each, gpu, coefficients).items():
            errors[name].append(error)
    calibrations = [c for c in json.loads(CALIBRATIONS.read_text()) if c["gpu"] != gpu]
    calibrations.append(
        {
            "gpu": gpu,
            "engine": next(row.engine for row in rows),
            "source": f"measured, {len(own)} cells",
            "errors": {k: round(float(np.quantile(np.abs(v), 0.95)), 3) for k, v in errors.items()},
            "coefficients": _rounded(asdict(coefficients)),
        }
    )
    CALIBRATIONS.write_text(json.dumps(calibrations, indent=1) + "\n")


def _beside_peer(rows: Sequence[Row], errors: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Both tools on the cells that the peer answered."""
    theirs = _peer_rows()
    answered = {(each["group"], each["variant"], each["in_flight"]) for each in theirs}
    ours = [
        each
        for row, each in zip(rows, errors, strict=True)
        if (row.group, row.observation.group, str(row.observation.in_flight)) in answered
        and row.part == "held out"
    ]
    peers = [{name: float(each[f"{name}_error"]) for name in _METRICS} for each in theirs]
    yield "\n## Beside AIConfigurator 0.12, on the same cells\n\n"
    yield "| | cells | TTFT | TPOT | E2E |\n|---|--:|--:|--:|--:|\n"
    yield f"| whet | {len(ours)} | {_cells(ours)} |\n"
    yield f"| AIConfigurator, vLLM 0.24 | {len(peers)} | {_cells(peers)} |\n"


def _peer_rows() -> list[dict[str, str]]:
    with (FOLDER / "peer.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _rounded(value: Any) -> Any:
    """Numbers to four digits, within a document."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _errors(observation: Observation, gpu: str, coefficients: Coefficients) -> dict[str, float]:
    """predicted ÷ measured − 1, by metric."""
    predicted = dict(predict_latencies(observation, coefficients, CUDA[gpu].sheet).items())
    return {
        name: (predicted[name] or 0.0) / value - 1
        for name, value in observation.measured.items()
        if name in _METRICS and value
    }


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Errors by run, and by variant outside of the model; writes accuracy.csv."""
    errors = [
        _errors(row.observation, row.gpu, calibration_of(row.gpu).coefficients) for row in rows
    ]
    _write_csv(rows, errors)
    head = "| | cells | TTFT | TPOT | E2E |\n|---|--:|--:|--:|--:|\n"
    named = list(zip(rows, errors, strict=True))
    yield "## By run\n\n" + head
    for group, part in dict.fromkeys((row.group, row.part) for row in rows):
        mine = [each for row, each in named if (row.group, row.part) == (group, part)]
        yield f"| {group}: {part} | {len(mine)} | {_cells(mine)} |\n"
    yield from _beside_peer(rows, errors)
    yield "\n## Outside of the model, by variant\n\n" + head
    outside = [(row.observation.group, each) for row, each in named if row.part == "outside"]
    for variant in dict.fromkeys(name for name, _ in outside):
        mine = [each for name, each in outside if name == variant]
        yield f"| `{variant}` | {len(mine)} | {_cells(mine)} |\n"


def _write_csv(rows: Sequence[Row], errors: Sequence[Mapping[str, float]]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "accuracy.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [f"{name}_{what}" for name in _METRICS for what in ("ms", "error")]
        loads = ["in_flight", "rate_rps"]
        writer.writerow(["group", "gpu", "engine", "part", "variant", *loads, *names])
        for row, error in zip(rows, errors, strict=True):
            cell = row.observation
            where = [row.group, row.gpu, row.engine, row.part, cell.group, cell.in_flight]
            last_s = cell.requests[-1].arrival_s
            where.append("" if cell.in_flight else f"{(len(cell.requests) - 1) / last_s:.3g}")
            measured = dict(cell.measured.items())
            figures = [
                text
                for name in _METRICS
                for text in (f"{1e3 * (measured[name] or 0):.4g}", f"{error[name]:.3f}")
            ]
            writer.writerow([*where, *figures])


def _cells(errors: Sequence[Mapping[str, float]]) -> str:
    """Median and p95 of the absolute errors, in percent."""
    cells = []
    for name in _METRICS:
        sizes = np.abs(np.array([each[name] for each in errors]))
        cells.append(f"{100 * np.median(sizes):.0f}, {100 * np.quantile(sizes, 0.95):.0f}")
    return " | ".join(cells)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    added = kinds.add_parser("add")
    added.add_argument("run", type=Path)
    added.add_argument("--group", required=True)
    added.add_argument("--fitted", nargs="*", default=[])
    added.add_argument("--outside", nargs="*", default=[])
    kinds.add_parser("fit").add_argument("gpu")
    kinds.add_parser("page")
    options = parser.parse_args()
    if options.what == "add":
        add(options.run, options.group, options.fitted, options.outside)
    elif options.what == "fit":
        write_coefficients(options.gpu)
    else:
        before, mark, _ = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        PAGE.write_text(before + mark + "".join(tables(stored())), encoding="utf-8")


if __name__ == "__main__":
    main()
