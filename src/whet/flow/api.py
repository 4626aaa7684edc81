"""The commands as functions, over the same options classes as the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whet.core.protocols import Observer, Silent
from whet.core.records.decision import Decision
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.run import Run
from whet.flow.bench.options import BenchOptions
from whet.flow.quantize.options import QuantizeOptions
from whet.flow.run.options import RunOptions, SpecOptions

if TYPE_CHECKING:
    from whet.flow.bench.run import BenchResult


def run(
    spec_file: Path | str,
    options: RunOptions = RunOptions(),
    *,
    change: SpecOptions = SpecOptions(),
    observer: Observer | None = None,
) -> Run:
    """Find the cheapest configuration, as ``whet run`` does, and return the run.

    ``run(...).decision`` is the decision, ``.cells`` are the measured cells. No report is written
    (``whet.report.run.files.write_reports``). Raises any branch of ``WhetError``.
    """
    from whet.flow.run.pipeline import execute, read_run

    spec, root, source = read_run(Path(spec_file), change, options)
    execute(spec, root, source=source, options=options, observer=observer or Silent())
    return Run.read(root)


def quantize(
    model: str,
    out: Path | str,
    options: QuantizeOptions = QuantizeOptions(),
    *,
    observer: Observer | None = None,
) -> QuantizedCheckpoint:
    """Quantize a checkpoint into ``out``, as ``whet quantize`` does.

    Raises ``UsageError``, ``CheckpointError`` and ``QuantizationError``.
    """
    from whet.flow.quantize.checkpoint import quantize_single

    return quantize_single(model, Path(out), options, observer or Silent())


def bench(
    url: str, options: BenchOptions = BenchOptions(), *, observer: Observer | None = None
) -> BenchResult:
    """Load-test a running server, as ``whet bench`` does without --find-max and --against.

    Raises ``EngineLostError`` where nothing answers and ``UsageError`` for options that do not go
    together. A request that fails is an event of its trial.
    """
    from whet.flow.bench.build import build_request
    from whet.flow.bench.run import bench as send

    return send(build_request(url, options), observer or Silent())


def decide(run_dirs: Sequence[Path | str]) -> Decision:
    """Redo the decision from stored runs, one hardware tier each.

    Raises ``StorageError`` where a folder holds no run and ``UsageError`` for two of one tier.
    """
    from whet.flow.run.conclude.conclude import decide_over

    return decide_over([Run.read(Path(path)) for path in run_dirs])
