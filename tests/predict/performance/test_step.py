"""Step times: bounds that physics gives, and what makes a step longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.fit import TYPICAL

from tests.predict.builders import gpu, variant
from tests.predict.performance.builders import SHEET, WORK, step_model
from tests.records import model
from whet.predict.hardware import CUDA
from whet.predict.performance.coefficients import calibration_of
from whet.predict.performance.step import Draft, StepModel
from whet.predict.performance.work import Work, work_of
from whet.predict.settings import read_settings


def test_a_step_of_one_sequence_reads_the_weights_once() -> None:
    fastest = (WORK.weight_bytes + WORK.head_bytes) / SHEET.bandwidth
    assert fastest < step_model().seconds(1, 1) < 2 * fastest


def test_a_long_prompt_is_bound_by_compute() -> None:
    fastest = 8192 * WORK.token_flops / SHEET.flops_16
    assert fastest < step_model().seconds(0, 0, prefill=8192, pairs=8192**2 / 2) < 2 * fastest


@pytest.mark.parametrize("scheme", ["FP8", "W4A16", "W8A8-INT8"])
def test_fewer_bits_are_faster_for_one_sequence(scheme: str) -> None:
    bits = 4.125 if scheme == "W4A16" else 8
    work = replace(WORK, weight_bytes=WORK.weight_bytes * bits / 16, scheme=scheme)
    assert step_model(work).seconds(1, 1) < step_model().seconds(1, 1)


def test_more_sequences_and_longer_contexts_take_longer() -> None:
    model = step_model()
    for times in (
        [model.seconds(n, n * 1000) for n in (1, 16, 256)],
        [model.seconds(16, 16 * context) for context in (100, 1000, 8000)],
    ):
        assert times == sorted(times)


def test_a_window_bounds_what_is_read() -> None:
    work = replace(WORK, kv_bytes=((131072.0, 1024),))
    assert step_model(work).seconds(8, 8 * 1024) == step_model(work).seconds(8, 8 * 100_000)


def test_one_token_reads_its_experts_and_many_tokens_all() -> None:
    work = replace(WORK, weight_bytes=1e9, expert_bytes=15e9, expert_share=1 / 16)
    few, many = step_model(work).seconds(1, 1), step_model(work).seconds(256, 256)
    assert few < step_model().seconds(1, 1) / 3
    assert many > step_model(replace(work, token_flops=0.0)).seconds(1, 1) * 2


def test_a_draft_adds_its_steps_and_the_rows_that_are_verified() -> None:
    head = replace(WORK, layers=1, weight_bytes=5e8, token_flops=5e8)
    drafted = step_model(draft=Draft(tokens=4, length=3.0, work=head))
    plain = step_model().seconds(8, 8000)
    assert plain < drafted.seconds(8, 8000) < 2 * plain
    assert (drafted.rows, drafted.advance) == (5, 3.0)


@pytest.mark.parametrize(
    ("draft", "work"),
    [
        (None, WORK),
        (Draft(tokens=4, length=3.0, work=WORK), WORK),
        (None, replace(WORK, devices=2, stages=2)),
        (None, replace(WORK, ranks=4, expert_bytes=1e9, expert_share=0.1, expert_layers=32)),
    ],
)
def test_the_parts_of_a_step_add_up(draft: Draft | None, work: Work) -> None:
    model = step_model(work, draft=draft)
    for decoding, context in ((1, 100), (64, 64_000), (256, 300_000)):
        parts = model.parts(decoding, context)
        assert sum(parts.values()) == pytest.approx(model.seconds(decoding, context))
        assert min(parts.values()) >= 0


def test_one_sequence_waits_for_weights_and_many_for_the_cache() -> None:
    few, many = step_model().parts(1, 100), step_model().parts(256, 256 * 8000)
    assert max(few, key=lambda name: few[name]) == "weights"
    assert max(many, key=lambda name: many[name]) == "KV cache"


def test_tensor_parallelism_divides_the_weights_and_adds_all_reduces() -> None:
    halves = replace(WORK, devices=2, weight_bytes=8e9, token_flops=8e9, head_bytes=5e8)
    alone, together = step_model().seconds(1, 1), step_model(halves).seconds(1, 1)
    assert alone / 2 < together < alone


def test_large_all_reduces_take_their_bytes() -> None:
    """134 MB among 8 H200s: 1.05 ms (AIConfigurator's custom_allreduce_perf, vLLM 0.24)."""
    eighth = replace(WORK, devices=8, layers=1, hidden_bytes=16384.0, token_flops=0.0)
    h200, tokens = replace(SHEET, link=450e9), 134_217_728 // 16384
    alone, together = (
        StepModel(work, h200, TYPICAL).seconds(0, 0, prefill=tokens)
        for work in (replace(eighth, devices=1), eighth)
    )
    assert (together - alone) / 2 == pytest.approx(1.05e-3, rel=0.3)


def test_a_pipeline_is_as_fast_as_one_device_for_one_sequence_and_faster_for_many() -> None:
    halves = replace(WORK, stages=2, layers=16, weight_bytes=8e9, token_flops=8e9)
    halves = replace(halves, kv_bytes=((65536.0, None),))
    alone, together = step_model().seconds(1, 1000), step_model(halves).seconds(1, 1000)
    assert together == pytest.approx(alone, rel=0.15)
    many = 256, 256 * 4000
    assert step_model(halves).seconds(*many) < 0.7 * step_model().seconds(*many)


def test_ranks_share_experts_and_each_computes_its_own_attention() -> None:
    whole = replace(WORK, weight_bytes=1e9, expert_bytes=15e9, expert_share=1 / 16)
    ranks = replace(whole, ranks=4, expert_bytes=15e9 / 4, expert_layers=32)
    few, many = (1, 1000), (256, 256 * 4000)
    assert step_model(ranks).seconds(*few) > 0.5 * step_model(whole).seconds(*few)
    assert step_model(ranks).seconds(*many) < 0.4 * step_model(whole).seconds(*many)
    assert step_model(ranks).parts(*many)["exchange"] > 0


def test_a_prompt_on_one_rank_pads_all_in_a_graph() -> None:
    model = step_model(replace(WORK, ranks=4, expert_bytes=1e9, expert_flops=1e7, expert_layers=32))
    one = model.seconds(8, 8000, 600, 600 * 300, 1)
    padded = model.seconds(8, 8000, 600, 600 * 300, 1, padded=True)
    on_each = model.seconds(8, 8000, 2400, 4 * 600 * 300, 4)
    assert one < padded == pytest.approx(on_each, rel=0.01)


@pytest.mark.parametrize(
    ("tokens", "experts", "milliseconds"),
    [
        # One layer of 128 experts of 2,048 × 768 in 16 bits, 8 of them a token, on one H200 and on
        # 8 with whole experts (moe_perf of AIConfigurator 0.12, vLLM 0.24, power law 1.01).
        (64, 1, 0.292),
        (1024, 1, 0.437),
        (16384, 1, 2.647),
        (64, 8, 0.075),
        (16384, 8, 1.251),
    ],
)
def test_a_layer_of_experts_as_measured(tokens: int, experts: int, milliseconds: float) -> None:
    args: dict[str, Any] = {"enable_expert_parallel": True} if experts > 1 else {}
    facts = model(
        hidden_size=2048,
        intermediate_size=768,
        layers=1,
        parameters=128 * 3 * 2048 * 768,
        linear_parameters=128 * 3 * 2048 * 768,
        expert_parameters=128 * 3 * 2048 * 768,
        active_parameters=8 * 3 * 2048 * 768,
        experts=128,
    )
    settings = read_settings(
        variant(tensor_parallel_size=experts, **args), target=facts, device=gpu(141)
    )
    work = replace(work_of(facts, settings), devices=1, pair_flops=0.0)
    model_ = StepModel(work, CUDA["H200"].sheet, calibration_of("H200").coefficients)
    # Without what every layer costs: this is the products' share alone.
    seconds = model_.seconds(0, 0, prefill=tokens) - calibration_of("H200").coefficients.layer_s
    assert 1e3 * seconds == pytest.approx(milliseconds, rel=0.3)


@pytest.mark.parametrize(
    ("scheme", "known"),
    [("W4A16/humming", "W4A16"), ("W8A8-INT8", "FP8"), ("NVFP4", "W4A16"), ("16bit", "16bit")],
)
def test_an_unknown_scheme_is_taken_as_the_nearest(scheme: str, known: str) -> None:
    shares = {"16bit": 0.8, "FP8": 0.7, "W4A16": 0.5}
    coefficients = replace(TYPICAL, bandwidth=shares, compute=shares)
    assert coefficients.of(scheme)[0] == shares[known]
