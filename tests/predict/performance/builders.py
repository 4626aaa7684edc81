"""A model of 8 billion parameters on a round device."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.fit import TYPICAL

from whet.predict.hardware import Sheet
from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.simulator import Limits
from whet.predict.performance.step import Draft, StepModel
from whet.predict.performance.work import Work

SHEET = Sheet(bandwidth=4e12, flops_16=1e15, flops_8=2e15, link=4e11)
WORK = Work(
    layers=32,
    devices=1,
    weight_bytes=16e9,
    expert_bytes=0.0,
    expert_share=1.0,
    token_flops=16e9,
    head_bytes=1e9,
    kv_bytes=((131072.0, None),),
    state_bytes=0.0,
    pair_flops=524288.0,
    hidden_bytes=8192.0,
    scheme="16bit",
)
LIMITS = Limits(batched_tokens=2048, max_seqs=64, kv_tokens=100_000)

ENGINE_ALONE = replace(TYPICAL, request_s=0.0, message_s=0.0, turns=0.0)
"""No time in the front end."""


def step_model(
    work: Work = WORK, draft: Draft | None = None, coefficients: Coefficients = ENGINE_ALONE
) -> StepModel:
    return StepModel(work, SHEET, coefficients, draft=draft)
