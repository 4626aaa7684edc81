"""Where recorded starts spent their time; what a log does not tell is unknown, never 0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.recorded import log
from whet.core.records.engine import StartFacts
from whet.core.records.evidence import EngineFacts
from whet.core.starts import start_parts, start_text
from whet.engines.vllm.log import read_log

TIMES = {
    # core, load, init, compile, graphs
    "h200_033_default": (41.0, 2.24311, 35.25, 14.98, 6.0),
    "h200_033_rust": (40.0, 2.243799, 35.15, 15.89, 5.0),
    "h100_033_rust_kv8": (88.0, 4.633738, 82.42, 43.75, 3.0),  # its lines are coloured
    "h100_16bit_graphs": (31.0, None, None, None, 1.0),  # 0.26
    "cpu_start": (15.0, 0.02, 12.87, None, None),  # 0.32, whose worker took 8 s to spawn
}


@pytest.mark.parametrize("name", TIMES)
def test_the_times_of_a_recorded_start(name: str) -> None:
    facts = log(name)
    times = (facts.core_s, facts.load_s, facts.init_s, facts.compile_s, facts.graphs_s)
    assert times == TIMES[name]


def test_the_weights_of_a_draft_count_on_a_cpu() -> None:
    more = "(Worker pid=1) INFO 11-28 17:39:59 [loader.py:1] Loading weights took 1.5 seconds"
    assert log("cpu_start", more=more).load_s == 1.52


def test_a_server_that_does_not_listen_yet_has_no_time_of_its_core() -> None:
    assert log("cpu_start", ("Starting vLLM server on", "Preparing")).core_s is None


def test_midnight_is_no_negative_time() -> None:
    lines = (
        "(EngineCore pid=2) INFO 12-31 23:59:50 [core.py:1] Initializing a V1 LLM engine (v0.32)",
        "(Worker_TP0 pid=3) INFO 12-31 23:59:57 [parallel_state.py:1] rank 0",
        "(APIServer pid=1) INFO 01-01 00:00:09 [entry.py:140] Starting vLLM server on http://h:1",
    )
    assert read_log("\n".join(lines)).core_s == 12.0


START = StartFacts(
    variant="default", ready_s=61.4, health_s=60.2, canary_text="", port=1, pid=1, attempts=1
)


def test_the_parts_of_a_start_sum_to_it() -> None:
    parts = start_parts(START, log("h200_033_default"))
    assert parts == pytest.approx(
        {
            "imports": 19.2,  # 60.2 - 41
            "weights": 2.24311,
            "compile": 14.98,
            "graphs": 6.0,
            "warm-up": 14.27,  # 35.25 - 14.98 - 6
            "rest": 4.70689,
        }
    )
    assert sum(each or 0 for each in parts.values()) == pytest.approx(START.ready_s)
    assert start_text(START, log("h200_033_default")) == (
        "1 min 01 s: imports 19, weights 2, compile 15, graphs 6, warm-up 14, rest 5"
    )


def test_parts_that_the_log_does_not_tell_are_unknown() -> None:
    parts = start_parts(START, log("cpu_start"))
    assert (parts["compile"], parts["graphs"], parts["warm-up"]) == (None, None, 12.87)
    assert set(start_parts(START, EngineFacts()).values()) == {None}
    assert start_parts(START, None) == start_parts(START, EngineFacts())
    assert start_text(replace(START, forked=True), None) == "1 min 01 s, forked"


def test_an_old_record_has_no_imports() -> None:
    assert start_parts(replace(START, health_s=None), log("cpu_start"))["imports"] is None
