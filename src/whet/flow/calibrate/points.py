"""The cells that a calibration measures: few, short, and apart in what they depend on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.protocols import Observer, Server
from whet.core.records import ResolvedEngine, TrialRecord
from whet.engines import get_profile
from whet.load import Draw, TrialPlan, run_trial
from whet.load.lengths import Independent, Lengths
from whet.load.synthetic import SyntheticShape, build_synthetic, ordinary_ids

_SPREAD: Final = 0.5
_TIMEOUT_S: Final = 300.0
_ROUNDS: Final = 3
_LEAST: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Requests in flight, and the mean tokens of a prompt and of its answer."""

    in_flight: int
    prompt: int
    output: int

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return round((1 + _SPREAD) * (self.prompt + self.output)) + 2


GPU_POINTS: Final = (
    Point(in_flight=1, prompt=128, output=128),
    Point(in_flight=1, prompt=4096, output=32),
    Point(in_flight=8, prompt=512, output=128),
    Point(in_flight=32, prompt=256, output=128),
    Point(in_flight=32, prompt=2048, output=64),
    Point(in_flight=128, prompt=128, output=128),
    Point(in_flight=256, prompt=256, output=64),
)
"""Weights at 1 in flight, prompts at 4,096 tokens, KV cache and compute with many in flight."""
CPU_POINTS: Final = (
    Point(in_flight=1, prompt=32, output=48),
    Point(in_flight=1, prompt=512, output=16),
    Point(in_flight=4, prompt=64, output=48),
    Point(in_flight=8, prompt=256, output=32),
    Point(in_flight=16, prompt=64, output=48),
)


def measure_points(
    server: Server,
    resolved: ResolvedEngine,
    points: Sequence[Point],
    *,
    tokenizer: Path,
    observer: Observer,
) -> Iterator[tuple[Point, TrialRecord]]:
    """One trial of random tokens for each point; lengths vary by half around the mean.

    Raises ``EngineLostError`` where the server ends.
    """
    vocabulary = ordinary_ids(tokenizer)
    for number, point in enumerate(points):
        observer.progress("points", number, len(points))
        shape = SyntheticShape(
            lengths=Independent(
                input=Lengths.around(point.prompt, _SPREAD),
                output=Lengths.around(point.output, _SPREAD),
            )
        )
        draw = Draw(
            requests=max(_ROUNDS * point.in_flight, _LEAST),
            batch_size=point.in_flight,
            trial=number,
            block_size=1,
        )
        load = build_synthetic(shape, vocabulary, draw=draw, warmup=min(point.in_flight, _LEAST))
        plan = TrialPlan(
            variant=resolved.variant.name,
            batch_size=point.in_flight,
            trial=number,
            workload=load.workload,
            warmup=load.warmup,
            request_timeout_s=_TIMEOUT_S,
            counter_names=get_profile(resolved.engine).counters_of(resolved.variant),
            require_counters=False,
            device=resolved.device,
        )
        yield (
            point,
            run_trial(
                server.base_url,
                server.model_name,
                plan=plan,
                memory=server.memory_bytes,
                alive=server.ensure_alive,
            ),
        )
    observer.progress("points", len(points), len(points))
