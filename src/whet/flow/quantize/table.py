"""The table of a comparison, read from its folder; nothing here touches a model."""

from __future__ import annotations

from typing import Final

from whet.core.errors import StorageError
from whet.core.records import (
    Distances,
    ModelFacts,
    QuantizedCheckpoint,
    SchemeOnServer,
    SchemeRow,
    SchemeTable,
)
from whet.core.run import Run
from whet.core.spec import SIXTEEN_BIT
from whet.core.store import RunStore
from whet.flow.quantize.compare_job import SETTINGS, ComparisonSettings

_NOT_YET: Final = "not done yet; the same command goes on"
_LEFT_OUT: Final = "left out (--no-tasks)"


def scheme_table(store: RunStore) -> SchemeTable:
    """The rows of every requested scheme, finished or not.

    ``StorageError`` where the folder holds no comparison.
    """
    settings, run = store.get(SETTINGS, SETTINGS, ComparisonSettings), Run(store)
    source, environment = run.models.get("source"), run.environment
    if settings is None or source is None or environment is None:
        raise StorageError(
            f"{store.root} holds no comparison; make one with: whet quantize MODEL OUT --compare"
        )
    rows = [_row(store, settings, name) for name in settings.recipes]
    return SchemeTable(
        model=settings.model,
        source=source,
        environment=environment,
        heldout=settings.heldout,
        rows=(_source_row(store, settings, source, rows), *rows),
    )


def _source_row(
    store: RunStore, settings: ComparisonSettings, source: ModelFacts, rows: list[SchemeRow]
) -> SchemeRow:
    measured = [row.distances.reference_perplexity for row in rows if row.distances is not None]
    server, why = _server_result(store, settings, SIXTEEN_BIT)
    return SchemeRow(
        name=SIXTEEN_BIT,
        title=f"the source, {source.stored.dtype}",
        weight_bytes=source.weight_bytes,
        bits_per_weight=source.stored.bits_per_weight,
        checkpoint=None,
        perplexity=measured[0] if measured else None,
        distances=None,
        served=server,
        not_served=why,
    )


def _row(store: RunStore, settings: ComparisonSettings, name: str) -> SchemeRow:
    done = distances = None
    if store.done("quantized", name):
        done = store.get("quantized", name, QuantizedCheckpoint)
    if store.done("distances", name):
        distances = store.get("distances", name, Distances)
    server, why = _server_result(store, settings, name)
    return SchemeRow(
        name=name,
        title=settings.titles[name],
        weight_bytes=None if done is None else done.weight_bytes,
        bits_per_weight=None if done is None else done.bits_per_weight,
        checkpoint=done,
        perplexity=None if distances is None else distances.perplexity,
        distances=distances,
        served=server,
        not_made=None if done else store.reason("quantized", name) or _NOT_YET,
        not_measured=None if distances or not done else store.reason("distances", name) or _NOT_YET,
        not_served=why if done else None,
    )


def _server_result(
    store: RunStore, settings: ComparisonSettings, name: str
) -> tuple[SchemeOnServer | None, str | None]:
    if store.done("served", name):
        return store.get("served", name, SchemeOnServer), None
    why = store.reason("served", name) or (_NOT_YET if settings.tasks else _LEFT_OUT)
    return None, why
