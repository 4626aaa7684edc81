"""The head-of-line test inside a run: who is sent what, and what the store keeps of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, FakeServer, tiny_spec
from tests.scripted_server import scripted_server
from whet.core.errors import EngineLostError
from whet.core.protocols import Silent
from whet.core.records import HeadOfLineRecord, ResolvedEngine
from whet.core.store import RunStore
from whet.flow.run.context import Job
from whet.flow.run.head_of_line import measure_head_of_line, wants_head_of_line
from whet.flow.run.preflight import prepare

SHORT: dict[str, int] = {"long_tokens": 200, "long_requests": 2, "short_tokens": 8, "slots": 2}


@dataclass
class Ear(Silent):
    """Keeps the warnings."""

    warned: list[str] = field(default_factory=list)

    def warn(self, message: str) -> None:
        self.warned.append(message)


def make(folder: Path, head_of_line: dict[str, int] | None) -> Iterator[Job]:
    spec = tiny_spec(
        folder,
        load={"head_of_line": head_of_line},
        variants={"fp16": {}, "cache": {"prefix_cache": True}, "static": {"batching": "static"}},
    )
    with pytest.MonkeyPatch.context() as patch, RunStore.open(folder / "run") as store:
        patch.setattr("whet.flow.run.preflight.get_engine", lambda _name: FakeEngine())
        yield prepare(spec, store, Ear(), skip_infeasible=False)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    yield from make(tmp_path, SHORT)


def measure(job: Job, name: str, *, dead: bool = False, **script: Any) -> HeadOfLineRecord | None:
    with scripted_server(**{"gap_s": 0.001, **script}) as scripted:
        measure_head_of_line(job, FakeServer(scripted, name, dead), of(job, name))
    return job.store.get("head_of_line", name, HeadOfLineRecord)


def of(job: Job, name: str) -> ResolvedEngine:
    return next(item for item in job.resolved if item.variant.name == name)


def test_every_variant_is_sent_what_the_baseline_was_at_the_same_times(job: Job) -> None:
    base = measure(job, "fp16")
    other = measure(job, "cache", gap_s=0.003)
    assert base is not None
    assert other is not None
    assert (other.rate_rps, other.period_ns) == (base.rate_rps, base.period_ns)
    assert other.trial.workload_sha256 == base.trial.workload_sha256
    due = [[event.scheduled_ns for event in record.trial.requests] for record in (base, other)]
    assert due[0] == due[1]
    assert len(base.long_indices) == 2
    assert (base.long_tokens, base.short_tokens, base.short_output, base.slots) == (200, 8, 16, 2)


def test_it_is_left_out_where_it_is_done_or_would_tell_nothing(job: Job, tmp_path: Path) -> None:
    assert [wants_head_of_line(job, item) for item in job.resolved] == [True, True, False]
    job.store.note("head_of_line", "cache", status="complete")
    assert not wants_head_of_line(job, of(job, "cache"))
    for plain in make(tmp_path / "plain", None):
        assert not wants_head_of_line(plain, of(plain, "fp16"))
        assert measure(plain, "fp16") is None
        assert plain.store.status("head_of_line", "fp16") is None


def test_a_server_that_dies_is_journalled_and_raised(job: Job) -> None:
    with pytest.raises(EngineLostError, match="the engine ended"):
        measure(job, "fp16", dead=True, fault="reset")
    assert job.store.status("head_of_line", "fp16") == "failed"
