"""Speed and memory of a served checkpoint: closed loops of the same requests for every scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.protocols import Server
from whet.core.records import CellSummary, PlannedRequest, ResolvedEngine, SchemeSpeed, TrialRecord
from whet.core.spec import WorkloadSpec
from whet.engines import get_profile
from whet.load import Draw, TrialPlan, Workload, build_warmup, build_workload, run_trial
from whet.metrics.summary import CellContext, summarise

OUTPUT_TOKENS: Final = 128
"""Output tokens of every request, so that the slots end together and the window has no drain."""
REQUESTS_PER_SLOT: Final = 5
"""The first wave, which the rate leaves out, and four that it counts."""
_LEAST_REQUESTS: Final = 8
_TIMEOUT_S: Final = 600.0
_TRIES: Final = 2
_CONTEXT_SHARE: Final = 4  # at most a quarter of a short context is output
_CELL: Final = CellContext(price_usd_per_hour=0.0, memory_kind="device")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLoad:
    """The requests of one load and its warm-up."""

    slots: int
    workload: Workload
    warmup: tuple[PlannedRequest, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedPlan:
    """The loads, the same for every scheme; ``problem`` says why no request fits."""

    slots: tuple[int, ...]
    loads: tuple[PlannedLoad, ...]
    problem: str | None = None

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its output included; 0 without loads."""
        requests = [each for load in self.loads for each in (*load.workload.requests, *load.warmup)]
        return max((len(each.prompt_token_ids) + each.max_tokens for each in requests), default=0)


def plan_speed(pool: Path, tokenizer: Path, *, slots: Sequence[int], context: int) -> SpeedPlan:
    """Draw the requests of every load from the built-in texts, short enough for ``context``."""
    error: UsageError | None = None
    for long_share in (0.5, 0.0):  # the long system prompts need about 1,000 tokens
        spec = _workload_spec(context, long_share)
        try:
            loads = tuple(_plan_load(pool, tokenizer, spec, each) for each in slots)
        except UsageError as problem:
            error = problem
        else:
            return SpeedPlan(slots=tuple(slots), loads=loads)
    return SpeedPlan(slots=tuple(slots), loads=(), problem=str(error))


def measure_speed(
    server: Server,
    resolved: ResolvedEngine,
    plan: SpeedPlan,
    *,
    progress: Callable[[int, int], None],
) -> tuple[tuple[SchemeSpeed, ...], int | None]:
    """The speed at each load, and the server's highest memory meanwhile in bytes.

    A load without a usable trial has the reason. Raises ``EngineLostError`` where the server ends.
    """
    if plan.problem is not None:
        return tuple(_no_speed(slots, plan.problem) for slots in plan.slots), None
    speeds: list[SchemeSpeed] = []
    memory: list[int] = []
    for done, load in enumerate(plan.loads):
        progress(done, len(plan.loads))
        speed, memory_bytes = _measure_load(server, resolved, load)
        speeds.append(speed)
        memory += [] if memory_bytes is None else [memory_bytes]
    progress(len(plan.loads), len(plan.loads))
    return tuple(speeds), max(memory, default=None)


def _workload_spec(context: int, long_share: float) -> WorkloadSpec:
    """Unique prompts of the built-in texts with answers of one length."""
    output = min(OUTPUT_TOKENS, max(1, context // _CONTEXT_SHARE))
    return WorkloadSpec(
        shared_prefix_share=0.0,
        long_system_share=long_share,
        output_lengths="ratio",
        min_output_tokens=output,
        max_output_tokens=output,
        max_input_tokens=max(1, context - output),
    )


def _plan_load(pool: Path, tokenizer: Path, spec: WorkloadSpec, slots: int) -> PlannedLoad:
    def draw(requests: int) -> Draw:
        return Draw(requests=requests, batch_size=slots, trial=0, block_size=1)

    requests = max(_LEAST_REQUESTS, REQUESTS_PER_SLOT * slots)
    return PlannedLoad(
        slots=slots,
        workload=build_workload(pool, tokenizer, spec, draw=draw(requests)),
        warmup=build_warmup(pool, tokenizer, spec, draw=draw(slots)),
    )


def _measure_load(
    server: Server, resolved: ResolvedEngine, load: PlannedLoad
) -> tuple[SchemeSpeed, int | None]:
    """One trial, repeated once where it has no figure, as after a disturbance."""
    for number in range(_TRIES):
        record = _trial(server, resolved, load, number)
        cell = summarise([record], cell=_CELL)
        if cell.status == "complete" and cell.tps_mean is not None:
            break
    return _speed(load, cell), record.memory_bytes


def _trial(server: Server, resolved: ResolvedEngine, load: PlannedLoad, number: int) -> TrialRecord:
    plan = TrialPlan(
        variant=resolved.variant.name,
        batch_size=load.slots,
        trial=number,
        workload=load.workload,
        warmup=load.warmup,
        request_timeout_s=_TIMEOUT_S,
        counter_names=get_profile(resolved.engine).counters_of(resolved.variant),
        require_counters=False,
        device=resolved.device,
    )
    return run_trial(
        server.base_url,
        server.model_name,
        plan=plan,
        memory=server.memory_bytes,
        alive=server.ensure_alive,
    )


def _speed(load: PlannedLoad, cell: CellSummary) -> SchemeSpeed:
    if cell.status != "complete" or cell.tps_mean is None:
        return _no_speed(load.slots, cell.failure or "no output was counted")
    return SchemeSpeed(load=load.slots, output_tps=cell.tps_mean.value, window_s=cell.window_s)


def _no_speed(slots: int, reason: str) -> SchemeSpeed:
    return SchemeSpeed(load=slots, output_tps=None, reason=reason)
