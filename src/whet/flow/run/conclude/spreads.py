"""The spread of starts by variant and load, and what varies unlike the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.records.decision import Spreads, StartSpread, UnlikeSpread
from whet.flow.run.conclude.results import RunSummary
from whet.metrics.pooled import StartTable
from whet.metrics.spread import unlike_loads, unlike_variants

_METRICS: Final = ("tps_mean", "ttft_p95_ms")


def spreads_of(summary: RunSummary) -> Iterator[Spreads]:
    """Yield the spread of throughput and of TTFT p95, over all starts of a run."""
    for metric in _METRICS:
        table = summary.fresh.get(metric) or summary.tables[metric]
        pooled = table.spread.sd
        if pooled is not None:
            yield Spreads(
                metric=metric, pooled=pooled, cells=tuple(_cells(table)), unlike=_unlike(table)
            )


def _cells(table: StartTable) -> Iterator[StartSpread]:
    places = {(name, block.load): 0 for block in table.pool for name in block.figures}
    for block in table.pool:
        for name, figures in block.figures.items():
            places[name, block.load] += len(figures)
    for (name, load), starts in places.items():
        own = table.own_level((name, load)).sd
        if own is not None:
            yield StartSpread(variant=name, load=load, starts=starts, sd=own)


def _unlike(table: StartTable) -> tuple[UnlikeSpread, ...]:
    unlike = unlike_variants(table.pool)
    unlike |= {load.words: sds for load, sds in unlike_loads(table.pool).items()}
    return tuple(
        UnlikeSpread(name=name, sd=sd, others=others) for name, (sd, others) in unlike.items()
    )
