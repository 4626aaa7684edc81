"""Two waves on real vLLM: answers of the first are checked while the second one starts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flow.run.test_as_stored_e2e import SPEC as SMALL
from whet.core.protocols import Silent
from whet.core.records.engine import StartFacts
from whet.core.records.quality import QualityRecord
from whet.core.run import Run
from whet.core.spec import parse_spec
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.engines import get_engine
from whet.engines.vllm import find_installed
from whet.flow.run.check.check import prepare
from whet.flow.run.measure.rounds import Measurer
from whet.flow.run.plan import Recorder, Wave, cells_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]
TARGET, DRAFT = pair_paths()
SPEC: dict[str, Any] = {
    **SMALL,
    "name": "waves",
    "model": {"target": str(TARGET), "draft": str(DRAFT)},
    "quality": {**SMALL["quality"], "lossless_prompts": 2},  # type: ignore[dict-item]
    "baseline": "cache",
    "variants": {
        "cache": {"prefix_cache": True},
        "draft+cache": {"prefix_cache": True, "speculation": {"num_tokens": 3}},
        "plain": {},
    },
}


@pytest.mark.usefixtures("lenient_client")
def test_two_waves_overlap_where_nothing_is_timed(tmp_path: Path) -> None:
    root, engine, first = tmp_path / "run", get_engine("vllm"), ("cache", "draft+cache")
    with RunStore.open(root) as store:
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(
            parse_spec(SPEC, base=tmp_path), recorder, lambda _: engine, skip_infeasible=False
        )
        cells = tuple(cells_of(plan.spec.load.points, [0]))
        servers = {item.variant.name: (item, cells) for item in plan.resolved}

        def wait_for_answers() -> None:
            deadline = time.monotonic() + 240
            while not all(store.done("quality", name) for name in first):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert all(map(psutil.pid_exists, pids(store, first))), "they stay up to be asked"
            assert (root / "logs" / "plain.log").exists(), "the next one has begun to start"
            assert not store.done("trials", "plain--b001-t0")

        with Measurer(recorder=recorder, engines=lambda _: engine).open_waves() as waves:
            wave = Wave(servers=tuple(servers[name] for name in first), check=lambda: first)
            waves.measure(plan, wave)
            assert all(map(psutil.pid_exists, pids(store, first)))
            waves.measure(plan, Wave(servers=(servers["plain"],)), meanwhile=wait_for_answers)
        assert not any(map(psutil.pid_exists, pids(store, servers)))
        assert sum(waves.spent.values()) > 0
    order = keys(root)
    assert order.index(("starts", "draft+cache")) < order.index(("trials", "cache--b001-t0"))
    assert order.index(("trials", "draft+cache--b001-t0")) < order.index(("quality", "cache"))
    assert order.index(("quality", "cache")) < order.index(("quality", "draft+cache"))
    assert order.index(("quality", "draft+cache")) < order.index(("trials", "plain--b001-t0"))
    done = Run.read(root)
    assert {cell.status for cell in done.cells} == {"complete"}
    checked = store.get("quality", "draft+cache", QualityRecord)
    assert checked is not None
    assert checked.lossless is not None, "compared with the plain server of its wave"


def pids(store: RunStore, names: Any) -> list[int]:
    starts = (store.get("starts", name, StartFacts) for name in names)
    return [start.pid for start in starts if start is not None and start.pid is not None]


def keys(root: Path) -> list[tuple[str, str]]:
    lines = (root / "journal.jsonl").read_text().splitlines()
    return [(entry["kind"], entry["key"]) for entry in map(json.loads, lines)]
