"""A run with ``search:`` on the scripted engine: what is tried, resumed, left and recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, tiny_spec
from whet.core.protocols import Silent
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@dataclass
class Noted(Silent):
    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    warn = note


def spec(folder: Path, *, search: dict[str, Any], **load: Any) -> Spec:
    small = {
        "concurrency": [1, 2, 4],
        "confirm": False,
        "min_requests": 4,
        "requests_per_slot": 2,
        "warmup_requests": 2,
    }
    engine = {"name": "vllm", "args": {"max_model_len": 512}}
    evidence = {"accept_unproved": ["prefix_cache", "settings", "speculation", "weights"]}
    return tiny_spec(
        folder, load=small | load, search=search, engine=engine, evidence=evidence, variants={}
    )


def ran(engine: FakeEngine, spec: Spec, root: Path, *, resume: bool = False) -> tuple[Run, Noted]:
    noted = Noted()
    with RunStore.open(root, resume=resume) as store:
        run(spec, Recorder(store=store, observer=noted), engines=engine)
    return Run.read(root), noted


def test_it_begins_at_the_default_and_tries_what_the_playbook_says(
    engine: FakeEngine, tmp_path: Path
) -> None:
    result, noted = ran(engine, spec(tmp_path, search={"time": "1h"}), tmp_path / "run")
    print(noted.notes, engine.started, result.tried, result.search)
    assert engine.started[0] == "default"
    assert set(result.tried) == set(engine.started)
    assert result.decision is not None
    assert not result.missing
