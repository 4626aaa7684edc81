"""Planted faults: a variant claims one thing, the engine said another, and the verdict knows.

Each fault has a healthy twin of the same claim that is proved: a check that never proves is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.levers import faults_cells, faults_start
from tests.levers.faults_cells import CELLS
from tests.levers.faults_start import LEVERS, WEIGHTS
from tests.levers.planted import Fault, Judge, start
from tests.levers.recorded import log, pages

FAULTS = [*WEIGHTS, *LEVERS, *CELLS]
TWINS: dict[str, Judge] = faults_start.TWINS | faults_cells.TWINS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_is_caught(fault: Fault) -> None:
    verdict = fault.judge()
    assert verdict is not None
    assert (verdict.outcome, fault.word in verdict.observed) == (fault.outcome, True), verdict


@pytest.mark.parametrize("name", TWINS)
def test_its_healthy_twin_is_proved(name: str) -> None:
    verdict = TWINS[name]()
    assert verdict is not None
    assert verdict.outcome == "proved", verdict


def test_a_prefix_cache_that_is_on_is_left_to_its_counters() -> None:
    assert start("prefix_cache", log("cpu_flash_refused"), pages(), prefix_cache=True) is None


def test_every_claim_has_faults_and_a_twin() -> None:
    names = {fault.name for fault in FAULTS}
    assert len(names) == len(FAULTS)
    assert len(names) >= 20
    assert names >= {
        "said AWQ, served in 16 bit",
        "four bits on a fallback kernel",
        "FP8 without the hardware",
        "a --quantization that does nothing",
        "max_num_seqs resolved lower",
        "an own flag that no source tells",
        "fp8 KV cache, the label says auto",
        "fp8 KV cache, the label is missing",
        "fp8 KV cache, the checkpoint's scales are 1.0",
        "an attention backend that was refused",
        "eager although graphs were asked for",
        "asynchronous scheduling switched off by speculation",
        "two ranks asked for, one in the layers",
        "two engines asked for, one in the metrics",
        "an adapter that is not in /v1/models",
        "an adapter that no request asked for",
        "the adapters' gauge is missing",
        "nothing drafted",
        "a draft that never accepts",
        "speculation counters renamed",
        "counters reset in the window",
        "a simulated acceptance length that is missed",
        "more draft tokens than K",
        "a workload that does not hit",
        "a workload that cannot hit",
        "an earlier trial's entries",
        "prefix caching off behind a proxy",
        "a prefix-cache metric renamed by a proxy",
        "caching on where the variant says off",
        "static batches measured in a closed loop",
    }

    def kinds(judges: Sequence[Judge]) -> set[str]:
        return {verdict.claim.kind for judge in judges if (verdict := judge()) is not None}

    assert kinds([fault.judge for fault in FAULTS]) == kinds(list(TWINS.values()))
