"""Cascade attention: a setting that is resolved as asked by runners that do not have it."""

from __future__ import annotations

import pytest

from tests.levers.planted import start
from tests.levers.recorded import log, pages

V2 = "\n(EngineCore pid=1) INFO 11-22 06:02:31 [gpu_worker.py:378] Using V2 Model Runner\n"
OFF = (
    "\nWARNING 11-22 06:02:31 [vllm.py:1133] Disabling cascade attention (not yet compatible with "
    "async speculative decoding).\n"
)


@pytest.mark.parametrize(
    ("device", "more", "outcome", "word"),
    [
        ("cuda", "", "proved", ""),
        ("cuda", V2, "contradicted", "Using V2 Model Runner, which has no cascade attention"),
        ("cuda", OFF, "contradicted", "not yet compatible with async"),
        ("cpu", "", "contradicted", "on a CPU"),
    ],
)
def test_cascade_attention_that_cannot_run_contradicts(
    device: str, more: str, outcome: str, word: str
) -> None:
    resolved = ('"cudagraph_mode": 0', '"cudagraph_mode": 0, "disable_cascade_attn": false')
    facts = log("h100_fp8", more=more)
    asked = {"disable_cascade_attn": False}
    verdict = start("settings", facts, pages(resolved), device=device, args=asked)
    assert verdict is not None
    assert (verdict.outcome, word in verdict.observed) == (outcome, True)


def test_switching_it_off_is_what_the_v2_runner_does() -> None:
    verdict = start("settings", log("h100_fp8", more=V2), args={"disable_cascade_attn": True})
    assert verdict is not None
    assert verdict.outcome == "proved"
