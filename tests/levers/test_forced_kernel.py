"""Kernels that are asked for by name: through the environment, and as vLLM's custom operations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.builders import resolved
from tests.levers.faults_start import NO_FP8
from tests.levers.planted import start
from tests.levers.recorded import log, pages
from whet.core.records.evidence import EngineFacts, Verdict
from whet.levers import judge_start

MARLIN = ("CutlassFP8", "MarlinFP8")
FORCED = (("VLLM_TEST_FORCE_FP8_MARLIN", "1"),)


def weights(facts: EngineFacts, *env: tuple[str, str], scheme: str = "FP8") -> Verdict:
    found = judge_start(replace(resolved(scheme=scheme), device="cuda", env=env), facts)
    return next(verdict for verdict in found if verdict.claim.kind == "weights")


def test_marlin_that_was_asked_for_proves_the_weights() -> None:
    verdict = weights(log("h100_fp8", MARLIN, more=NO_FP8), *FORCED)
    assert verdict.outcome == "proved"
    assert "MarlinFP8ScaledMMLinearKernel" in verdict.observed


def test_marlin_that_was_asked_for_and_did_not_come_proves_nothing() -> None:
    assert weights(log("h100_fp8"), *FORCED).outcome == "unproved"


@pytest.mark.parametrize("env", [(), (("VLLM_TEST_FORCE_FP8_MARLIN", "0"),)])
def test_marlin_that_nobody_asked_for_is_a_fallback(env: tuple[tuple[str, str], ...]) -> None:
    assert weights(log("h100_fp8", MARLIN), *env).outcome == "contradicted"


def test_a_head_s_marlin_does_not_stand_for_the_target_s_four_bits() -> None:
    said = log("h100_w4a16", ("Machete", "Conch"), more=NO_FP8)
    assert weights(said, *FORCED, scheme="W4A16").outcome == "contradicted"
    assert weights(log("h100_w4a16", more=NO_FP8), *FORCED, scheme="W4A16").outcome == "proved"


@pytest.mark.parametrize(
    ("resolved_to", "outcome"),
    [('["+quant_fp8", "+rms_norm", "none"]', "proved"), ('["+rms_norm", "none"]', "contradicted")],
)
def test_the_engine_may_add_to_the_operations_that_were_asked_for(
    resolved_to: str, outcome: str
) -> None:
    told = pages(('"cudagraph_mode": 0', f'"cudagraph_mode": 0, "custom_ops": {resolved_to}'))
    asked = {"compilation_config": '{"custom_ops":["+quant_fp8","+rms_norm"]}'}
    verdict = start("settings", log("cpu_flash_refused"), told, args=asked)
    assert verdict is not None
    assert verdict.outcome == outcome
