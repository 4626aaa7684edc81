"""A synthetic run directory, made through the real records: five variants at five concurrencies.

One cell failed, one claim is contradicted, one p95 is not certified. With ``hostile`` the texts
that come from outside (model output, names, log lines) try to break out of every format.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.report.run_findings import decision, effects, quality, verdicts
from tests.report.run_setting import (
    cell,
    engine,
    environment,
    facts,
    model,
    quantized,
    trial,
    workload,
)
from tests.report.run_texts import (
    CONCURRENCY,
    FAILED,
    NASTY,
    PRICE,
    VARIANTS,
    Texts,
)
from whet.core.records.engine import StartFacts
from whet.core.records.evidence import VerdictSet
from whet.core.spec import Spec, parse_spec
from whet.core.store import RunStore, write_json


def make_run(root: Path, *, hostile: bool = False, stop_after: int | None = None) -> RunStore:
    """Write a run below ``root``; ``stop_after`` cells leaves it without a decision."""
    texts = NASTY if hostile else Texts()
    spec = make_spec(root, texts)
    with RunStore.open(root) as store:
        (root / "spec.yaml").write_text(yaml.safe_dump({"name": spec.name}), encoding="utf-8")
        write_json(root / "resolved_spec.json", spec.model_dump(mode="json"))
        write_json(root / "environment.json", environment(texts))
        store.put("models", "target", model(texts, 7_240_000_000, 32))
        store.put("models", "draft", model(texts, 1_100_000_000, 8))
        store.put("quantized", "awq", quantized(texts))
        _put_cells(store, texts, stop_after)
        if stop_after is None:
            _put_conclusions(store, texts)
    return RunStore.read(root)


def make_spec(root: Path, texts: Texts) -> Spec:
    """The spec with five variants."""
    data = {
        "name": "support-desk",
        "model": {"target": "org/target", "draft": "org/draft"},
        "hardware": {
            "tier": texts.tier,
            "price_usd_per_hour": PRICE,
            "price_source": "list price, on demand",
        },
        "variants": {
            "fp16": {},
            "awq": {"weights": "awq"},
            "awq+draft": {"weights": "awq", "speculation": {}},
            "awq+cache": {"weights": "awq", "prefix_cache": True},
            "awq+draft+cache": {"weights": "awq", "speculation": {}, "prefix_cache": True},
        },
    }
    return parse_spec(data, base=root)


def _put_cells(store: RunStore, texts: Texts, stop_after: int | None) -> None:
    done = 0
    for name in VARIANTS:
        if stop_after is not None and done >= stop_after:
            return
        store.put("variants", name, engine(name, texts))
        store.put(
            "starts",
            name,
            StartFacts(
                variant=name, ready_s=41.8, canary_text="ok", port=41231, pid=77, attempts=1
            ),
        )
        store.put("facts", name, facts(name, texts))
        for size in CONCURRENCY:
            if stop_after is not None and done >= stop_after:
                return
            done += 1
            store.put("workloads", f"b{size:03d}-t0", workload(size))
            store.put("trials", f"{name}--b{size:03d}-t0", trial(name, size, texts))
            status = "failed" if (name, size) == FAILED else "complete"
            store.put("cells", f"{name}--b{size:03d}", cell(name, size, texts), status=status)


def _put_conclusions(store: RunStore, texts: Texts) -> None:
    for name in VARIANTS:
        store.put("quality", name, quality(name, texts))
        store.put("verdicts", name, VerdictSet(variant=name, verdicts=tuple(verdicts(name, texts))))
    store.put("effects", "all", effects())
    write_json(store.path("decision.json"), decision(texts))
    store.note("decision", "decision", status="complete")
