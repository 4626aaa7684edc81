"""A run's figures of one variant as flat JSON, for ``dvc metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from whet.ci.result import ORDER, CiResult
from whet.core.load_point import load_key
from whet.core.records import Estimate
from whet.core.run import Run
from whet.metrics import metrics_in


def metrics_json(run: Run, result: CiResult) -> dict[str, float | str]:
    """The verdict and its counts, each figure of each load, and what the answers are worth."""
    counts = {f"checks_{verdict}": len(result.counted(verdict)) for verdict in ORDER}
    return {"verdict": result.verdict, **counts, **dict(_figures(run, result.variant))}


def _figures(run: Run, variant: str) -> Iterator[tuple[str, float]]:
    for cell in run.cells:
        if cell.variant != variant:
            continue
        for metric in metrics_in("cells"):
            figure = cell.figures.get(metric.name)
            value = figure.value if isinstance(figure, Estimate) else figure
            if value is not None:
                yield f"{load_key(cell.batch_size)}_{metric.name}", value
    record = run.quality.get(variant)
    if record is None:
        return
    if record.perplexity is not None:
        yield "perplexity", record.perplexity.value
    for score in record.tasks:
        yield f"task_{score.task}", score.score.value
