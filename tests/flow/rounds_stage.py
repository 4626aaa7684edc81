"""Many servers and trials in no time: what is asked for is noted, and each is over at once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.stage import FakeEngine, FakeServer, tiny_spec
from tests.metrics.events import steady, trial
from tests.records import quality
from whet.core.errors import EngineLostError, EngineStartError
from whet.core.protocols import Observer, Server, Silent
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Declared
from whet.core.records.load import TrialRecord
from whet.core.records.quality_checks import LosslessCheck
from whet.core.records.summary import CellSummary
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.engines import get_profile
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.load import TrialInterrupted, TrialLost, TrialPlan, workload
from whet.load.workload import Renderer, load_renderer
from whet.quality import Measured, QualityPlan
from whet.quality.continuations import Continuations
from whet.quality.lossless import PlainReference

VARIANTS: dict[str, Any] = {"fp16": {}, "b": {}, "c": {"prefix_cache": True}}
FORTH = ["fp16", "b", "c"]
BACK = FORTH[::-1]
DECLARED = Declared(
    version="0.32.0", config=(("model_config.max_model_len", "512"),), cache=(), models=("m",)
)
PLAIN_LOG = """vLLM model structure:
LlamaForCausalLM()(
  (model): LlamaModel()(
    (layers): ModuleList()(
      (0-1): 2 x LlamaDecoderLayer()(
        (qkv_proj): QKVParallelLinear(in_features=128, output_features=256)
      )
    )
  )
)
"""
KERNEL_LOG = PLAIN_LOG + "Using MarlinLinearKernel for CompressedTensorsWNA16\n"


_TEXT = Continuations(prompts_sha256="", max_tokens=1, answered=(), missing=None)
ASKED = PlainReference(first=_TEXT, again=_TEXT, samples=None)
COMPARED = LosslessCheck(
    parity=None, sampling=None, acceptance_rate=None, drafted=None, verdict="pass", reasons=()
)


@dataclass
class LoggedServer(FakeServer):
    """A server without a socket that has printed ``log``."""

    log: str = ""

    @property
    def base_url(self) -> str:
        return "http://nowhere"

    def log_text(self) -> str:
        return self.log


@dataclass
class Stand(FakeEngine):
    """Starts by number, from 0: which are refused, which print another log, which is cut short."""

    refused: set[tuple[str, int]] = field(default_factory=set)
    logs: dict[tuple[str, int], str] = field(default_factory=dict)
    stop_at: int | None = None

    @contextmanager
    def _serve(self, resolved: ResolvedEngine, log: Path) -> Iterator[Server]:
        name = resolved.variant.name
        if len(self.started) == self.stop_at:
            raise KeyboardInterrupt
        number = self.started.count(name)
        self.started.append(name)
        if (name, number) in self.refused:
            raise EngineStartError("CUDA out of memory; lower gpu_memory_utilization")
        dead = number < self.deaths.get(name, 0)
        yield LoggedServer(
            scripted=None,  # type: ignore[arg-type]
            variant=name,
            dead=dead,
            log=self.logs.get((name, number), PLAIN_LOG),
        )


@dataclass
class Bench:
    """Trials and quality as they are asked for; each is over at once.

    ``slower`` is the share of the first start's speed that every later start has less, ``wobble``
    the standard deviation of a start, as a share. ``speeds`` are those of (variant, concurrency),
    ``failing`` those that come back failed. Answers pass the
    gate where ``passes``. Cells in ``tired`` hardly move from trial 2 on. A variant in ``capacity``
    takes seconds to its first token above so many requests in a trial, one in ``first_capacity`` in
    the first two trials alone.
    """

    engine: Stand = field(default_factory=Stand)
    plans: list[TrialPlan] = field(default_factory=list)
    judged: list[tuple[str, bool]] = field(default_factory=list)
    slower: float = 0.0
    wobble: float = 0.0
    speeds: dict[tuple[str, int], float] = field(default_factory=dict)
    failing: set[tuple[str, int]] = field(default_factory=set)
    passes: bool = False
    tired: set[tuple[str, int]] = field(default_factory=set)
    capacity: dict[str, float] = field(default_factory=dict)
    first_capacity: dict[str, float] = field(default_factory=dict)
    stop_at: int | None = None

    @property
    def measured(self) -> list[tuple[str, int, int]]:
        return [(plan.variant, plan.load.slots, plan.trial) for plan in self.plans]

    def run_trial(self, _url: str, _model: str, *, plan: TrialPlan, **asked: Any) -> TrialRecord:
        cell = (plan.variant, plan.load.slots)
        speed = self.speeds.get(cell, 1.0) - self.slower * (len(self.engine.started) - 1)
        speed *= 1 + random.Random(f"{plan.variant} {plan.trial}").gauss(0, self.wobble)
        most = (self.first_capacity if plan.trial < 2 else {}) | self.capacity
        if len(plan.offsets_ns) > most.get(plan.variant, math.inf):
            speed = 0.001
        if cell in self.tired and plan.trial >= 2:
            speed = 0.001
        record = replace(
            trial(
                steady(16, scale=1 / speed),
                number=plan.trial,
                variant=plan.variant,
                load=plan.load,
            ),
            workload_sha256=plan.workload.facts.sha256,
            loop=plan.loop,
            excluded_warmup=len(plan.warmup),
            status="failed" if cell in self.failing else "complete",
        )
        self.plans.append(plan)
        if len(self.plans) == self.stop_at:
            raise TrialInterrupted("stopped", record=replace(record, status="interrupted"))
        try:
            asked["alive"]()
        except EngineLostError as error:
            raise TrialLost(str(error), record=replace(record, status="failed")) from error
        return record

    def measure_quality(self, _url: str, _model: str, plan: QualityPlan, **_asked: Any) -> Measured:
        self.judged.append((plan.variant, plan.baseline is not None))
        record = quality(
            variant=plan.variant,
            verdicts=tuple((limit, "pass") for limit in (0.01, 0.02, 0.05) if self.passes),
            lossless=COMPARED if plan.checks and plan.checks.plain else None,
        )
        return Measured(
            record=record, plain=ASKED if plan.checks and plan.checks.is_plain else None
        )


def patch_declared(monkeypatch: pytest.MonkeyPatch, read: Callable[[str], Declared]) -> None:
    """Let every server's endpoints be read by ``read``."""
    profile = replace(get_profile("vllm"), read_declared=read)
    monkeypatch.setattr("whet.flow.run.measure.session.get_profile", lambda _name: profile)


@cache
def _renderer(max_tokens: int | None, variables: Any = ()) -> Renderer:
    """One for every tiny checkpoint, which renders a prompt once: half of a story's time."""
    with TemporaryDirectory() as folder:
        renderer = load_renderer(write_tiny_llama(Path(folder)), max_tokens, variables)
    renderer.render = cache(renderer.render)
    return renderer


def build_bench(monkeypatch: pytest.MonkeyPatch, made: Bench | None = None) -> Bench:
    made = made or Bench()
    monkeypatch.setattr(workload, "load_renderer", lambda _folder, *how: _renderer(*how))
    monkeypatch.setattr("whet.flow.serving.run_trial", made.run_trial)
    patch_declared(monkeypatch, lambda _url: DECLARED)
    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", made.measure_quality)
    return made


def spec_of(folder: Path, order: str = "interleaved", trials: int = 3, **change: Any) -> Spec:
    load = {"order": order, "concurrency": [1, 2], "trials": trials, "min_requests": 2}
    small = {"requests_per_slot": 1, "warmup_requests": 2}
    return tiny_spec(folder, **{"variants": VARIANTS, "load": load | small, **change})


def story(
    bench: Bench, spec: Spec, root: Path, *, resume: bool = False, observer: Observer | None = None
) -> None:
    with RunStore.open(root, resume=resume) as store:
        run(spec, Recorder(store=store, observer=observer or Silent()), engines=bench.engine)


def cells(root: Path) -> dict[tuple[str, float], CellSummary]:
    found = RunStore.read(root).all("cells", CellSummary)
    return {(cell.variant, cell.load.value): cell for cell in found}
