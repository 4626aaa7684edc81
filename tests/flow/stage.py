"""The whole story on a scripted engine: everything real but the model's words and times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.scripted_server import ScriptedServer, scripted_server
from whet import engines
from whet.core.errors import EngineLostError, EngineStartError
from whet.core.protocols import Observer, Server, Silent
from whet.core.records.engine import ResolvedEngine, StartFacts, Variant
from whet.core.spec import EngineSpec, Spec, parse_spec
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.plan import Plan, Recorder

SHORT = {"long_system_share": 0.0}
"""The built-in long system prompts are longer than the tiny checkpoint's context."""
LENGTHS = {"output_lengths": "ratio"}
"""A scripted server has no answers of its own length."""


@dataclass
class FakeServer:
    """A scripted server behind the engine's protocol; a ``dead`` one resets every request."""

    scripted: ScriptedServer
    variant: str
    dead: bool
    model_name: str = "scripted"

    @property
    def base_url(self) -> str:
        return self.scripted.url

    @property
    def start(self) -> StartFacts:
        return StartFacts(
            variant=self.variant, ready_s=0.1, canary_text="t", port=1, pid=None, attempts=1
        )

    def memory_bytes(self) -> int:
        return 10**9

    def log_text(self) -> str:
        return "nothing to say"

    def ensure_alive(self) -> None:
        if self.dead:
            raise EngineLostError("the engine ended; see its log")


@dataclass
class FakeEngine:
    """Starts scripted servers; of a variant in ``deaths`` the first so many die under load."""

    name: str = "fake"
    refuses: set[str] = field(default_factory=set)
    refusal: str = "CUDA out of memory; lower gpu_memory_utilization"
    deaths: dict[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def __call__(self, _name: str) -> FakeEngine:
        """Whichever engine a spec names, this one serves."""
        return self

    def version(self, _spec: EngineSpec) -> str:
        return "1.0"

    def resolve(self, variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        return ResolvedEngine(
            variant=variant,
            engine="vllm",
            engine_version="0.32.0",
            device="cpu",
            served_model_name="scripted",
            argv=("fake", "--model", variant.model_path, "--port", "{port}"),
            env=(),
            serve_line=f"vllm serve {variant.model_path}",
            ready_timeout_s=spec.ready_timeout_s,
        )

    def unsupported(self, _resolved: ResolvedEngine) -> str | None:
        return None

    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
    ) -> AbstractContextManager[Server]:
        return self._serve(resolved, log)

    @contextmanager
    def _serve(self, resolved: ResolvedEngine, log: Path) -> Iterator[Server]:
        name = resolved.variant.name
        self.started.append(name)
        if name in self.refuses:
            raise EngineStartError(self.refusal)
        dead = self.started.count(name) <= self.deaths.get(name, 0)
        with scripted_server(gap_s=0.001, words=True, fault="reset" if dead else None) as scripted:
            yield FakeServer(scripted, name, dead)


def tiny_spec(folder: Path, **change: Any) -> Spec:
    """Two variants at two concurrencies on a tiny checkpoint: a second or two to run."""
    target = write_tiny_llama(folder / "target")
    tasks = folder / "tasks.jsonl"
    tasks.write_text(
        '{"id": "1", "task": "sum", "messages": [{"role": "user", "content": "1+1"}], '
        '"expected": "2", "scorer": "number", "max_tokens": 2}\n'
    )
    heldout = folder / "heldout.jsonl"
    heldout.write_text('{"text": "the order was shipped"}\n' * 8)
    calibration = {"source": str(heldout), "samples": 4, "max_tokens": 32}
    data: dict[str, Any] = {
        "name": "tiny",
        "model": {"target": str(target)},
        "hardware": {"price_usd_per_hour": 1.0, "tier": "scripted"},
        "engine": {"name": "fake", "args": {"max_model_len": 512}},
        "recipes": {"rtn": {"method": "rtn", "calibration": calibration}},
        "workload": {**SHORT, "max_output_tokens": 16, "max_input_tokens": 400} | LENGTHS,
        "load": {
            "order": "blocks",
            "concurrency": [1, 2],
            "trials": 2,
            "min_requests": 4,
            "requests_per_slot": 2,
            "warmup_requests": 2,
        },
        "quality": {"heldout": str(heldout), "tasks": str(tasks)},
        "variants": {"fp16": {}, "other": {"prefix_cache": True}},
    }
    return parse_spec({**data, **change}, base=folder)


def install(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line and the functions of ``whet`` serve with ``engine``."""
    monkeypatch.setitem(engines.ENGINES, "fake", "whet.engines.vllm")
    monkeypatch.setattr("whet.engines.vllm.ENGINE", lambda: engine)


def recorder(store: RunStore, observer: Observer | None = None) -> Recorder:
    return Recorder(store=store, observer=observer or Silent())


def prepared(spec: Spec, store: RunStore, *, skip: bool = False) -> Plan:
    """The plan of a spec for a scripted engine."""
    return prepare(spec, recorder(store), FakeEngine(), skip_infeasible=skip)
