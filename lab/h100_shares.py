"""What a prefix share is worth on a server that runs: the run's traffic with fewer prompts shared.

The run measures the share of its spec. Right after, the same server is sent prompts of the same
lengths; only some of them begin with the shared prefix, the rest have their own.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from whet.core.protocols import Server
from whet.core.spec import Spec
from whet.core.store import write_atomic
from whet.flow.bench.request import ASSUMED_BLOCK_SIZE
from whet.load import Draw, TrialPlan, build_warmup, build_workload, run_trial
from whet.metrics.summary import CellContext, summarise
from whet.metrics.usable import trial_problem

SHARES: Final = (0.0, 0.5)
_FIRST_TRIAL: Final = 50
"""Beyond those of the run, whose prompts are in the cache."""
_WARMUP: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareRow:
    """One trial: output tokens a second with its interval, and what the counters said."""

    config: str
    batch_size: int
    shared_prefix_share: float
    requests: int
    input_tokens_mean: float
    output_tokens_per_s: float | None
    low: float | None
    high: float | None
    prefix_hit_rate: float | None
    acceptance_length: float | None
    problem: str


def measure_shares(
    server: Server, spec: Spec, texts: Path, config: str, sizes: str
) -> list[ShareRow]:
    """Every share at every size of ``sizes`` ("1,8,32") on ``server``, in that order."""
    trials = enumerate(SHARES, start=_FIRST_TRIAL)
    plan = [(trial, share, int(size)) for trial, share in trials for size in sizes.split(",")]
    return [
        _measure(server, spec, texts, config, size, (trial, share)) for trial, share, size in plan
    ]


def _measure(
    server: Server, spec: Spec, texts: Path, config: str, size: int, drawn: tuple[int, float]
) -> ShareRow:
    trial, share = drawn
    traffic = spec.workload.model_copy(update={"shared_prefix_share": share})
    count = spec.load.requests(size)
    source = (texts, Path(spec.model.target), traffic)
    draw = {"batch_size": size, "trial": trial, "block_size": ASSUMED_BLOCK_SIZE}
    sent = build_workload(*source, draw=Draw(requests=count, **draw))
    before = build_warmup(*source, draw=Draw(requests=min(size, _WARMUP), **draw))
    record = run_trial(
        server.base_url,
        server.model_name,
        plan=TrialPlan(variant=config, batch_size=size, trial=trial, workload=sent, warmup=before),
        memory=server.memory_bytes,
        alive=server.ensure_alive,
    )
    priced = CellContext(price_usd_per_hour=spec.hardware.price_usd_per_hour, memory_kind="device")
    cell = summarise([record], cell=priced)
    rate = cell.tps_mean
    return ShareRow(
        config=config,
        batch_size=size,
        shared_prefix_share=share,
        requests=count,
        input_tokens_mean=round(sent.facts.input_tokens_mean, 1),
        output_tokens_per_s=None if rate is None else round(rate.value, 1),
        low=None if rate is None or rate.low is None else round(rate.low, 1),
        high=None if rate is None or rate.high is None else round(rate.high, 1),
        prefix_hit_rate=cell.prefix_hit_rate,
        acceptance_length=cell.acceptance_length,
        problem=trial_problem(record) or "",
    )


def keep_shares(path: Path, rows: Sequence[ShareRow]) -> None:
    """Put ``rows`` into the CSV at ``path``, in place of those of the same variants."""
    names = list(ShareRow.__dataclass_fields__)
    new: list[Mapping[str, Any]] = [asdict(row) for row in rows]
    configs = {row.config for row in rows}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    others = [row for row in csv.DictReader(io.StringIO(text)) if row["config"] not in configs]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*others, *new])
    write_atomic(path, out.getvalue().encode())
