"""Every variant of a spec started on the installed engine, and what its start proves.

    python -m benchmarks.claims_engine SPEC OUT [--at-once 4] [--variants NAME …]

No load is measured: a variant starts, answers once, and the claims of a start are judged from its
log, as ``whet run`` judges them. The recipes' checkpoints are made first. Writes
``claims.csv``; OUT/work holds the logs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from whet.checkpoint import read_facts
from whet.core.errors import WhetError
from whet.core.protocols import Engine
from whet.core.provenance import find_device
from whet.core.records import ResolvedEngine
from whet.core.spec import Spec, load_spec
from whet.data import write_inputs
from whet.engines import get_engine, get_profile
from whet.flow.run.checkpoints import open_checkpoints
from whet.flow.run.resolve import quantized_path, resolve_variants
from whet.levers import judge_start
from whet.quant import quantize


def resolved_variants(spec: Spec, out: Path, engine: Engine) -> Iterator[ResolvedEngine]:
    """The variants as the engine gets them, their checkpoints made; refused ones are printed."""
    with open_checkpoints() as checkpoints:
        target = read_facts(checkpoints.find(spec.model.target))
        draft = spec.model.draft
        resolved, refused = resolve_variants(
            spec,
            out,
            target=target,
            draft=None if draft is None else read_facts(checkpoints.find(draft)),
            engine_for=lambda _name: engine,
            checkpoints=checkpoints,
        )
        write_inputs(out / "inputs")
        for name, recipe in spec.recipes.items():
            text = recipe.calibration.source or out / "inputs" / "calibration.jsonl"
            quantize(Path(target.path), quantized_path(out, name), recipe, calibration=text)
    for problem in refused:
        print(f"{problem.variant}: {problem.message}")
    yield from resolved


def judge(resolved: ResolvedEngine, engine: Engine, work: Path) -> list[dict[str, Any]]:
    """One row for each claim of a variant, or one that says why it did not start."""
    name = resolved.variant.name
    row = {
        "variant": name,
        "engine": f"{resolved.engine} {resolved.engine_version}",
        "device": find_device().name,
    }
    try:
        with engine.serve(resolved, log=work / f"{name}.log") as server:
            facts = get_profile(resolved.engine).read_log(server.log_text())
            started = {"ready_s": round(server.start.ready_s), "answer": server.start.canary_text}
    except WhetError as error:
        return [{**row, "outcome": "did not start", "observed": str(error).splitlines()[0]}]
    return [
        {
            **row,
            "claim": verdict.claim.statement,
            "outcome": verdict.outcome,
            "observed": verdict.observed,
            **started,
        }
        for verdict in judge_start(resolved, facts)
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--variants", nargs="+")
    options = parser.parse_args()
    spec = load_spec(options.spec)
    engine = get_engine(spec.engine.name)
    work = options.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    names = ("variant", "claim", "outcome", "observed", "ready_s", "answer", "engine", "device")
    with (
        ThreadPoolExecutor(options.at_once) as pool,
        (options.out / "claims.csv").open("w", newline="") as file,
    ):
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        variants = [
            each
            for each in resolved_variants(spec, options.out, engine)
            if options.variants is None or each.variant.name in options.variants
        ]
        for rows in pool.map(partial(judge, engine=engine, work=work), variants):
            writer.writerows(rows)
            file.flush()
            for row in rows:
                print(row["variant"], row["outcome"], row["observed"], sep=": ", flush=True)


if __name__ == "__main__":
    main()
