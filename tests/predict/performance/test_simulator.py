"""The simulated scheduler beside one that takes every step by itself."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from benchmarks.fit import TYPICAL

from tests.predict.performance.builders import ENGINE_ALONE, LIMITS, WORK, step_model
from whet.predict.performance.simulator import Limits, Request, simulate
from whet.predict.performance.step import Draft, StepModel

LOCK_STEP = replace(LIMITS, ahead=False)


def lengths(count: int, seed: int = 0) -> list[Request]:
    dice = random.Random(seed)
    pairs = [(dice.randint(50, 3000), dice.randint(2, 200)) for _ in range(count)]
    return [Request(prompt=prompt, output=output) for prompt, output in pairs]


def one_by_one(
    requests: list[Request], model: StepModel, limits: Limits, in_flight: int
) -> list[tuple[float, float]]:
    """First and last token of every request: a closed loop, host and device in turn, no cache."""
    pending = list(enumerate(requests))
    waiting = [pending.pop(0) for _ in range(min(in_flight, len(pending)))]
    left = {index: request.prompt for index, request in enumerate(requests)}
    answered: dict[int, int] = {}
    times: dict[int, tuple[float, float]] = {}
    now = 0.0
    while waiting or answered:
        budget = limits.batched_tokens - len(answered)
        decoding = dict(answered)
        context = sum(requests[index].prompt + done for index, done in decoding.items())
        tokens, pairs, ended = 0, 0.0, []
        for index, request in waiting:
            if tokens == budget:
                break
            chunk = min(left[index], budget - tokens)
            done = request.prompt - left[index]
            pairs += chunk * (done + chunk / 2)
            tokens, left[index] = tokens + chunk, left[index] - chunk
            ended += [index] if left[index] == 0 else []
        host_s = model.prefill_s if tokens else model.host_s
        now += host_s + model.seconds(len(decoding), context, tokens, pairs, len(ended))
        waiting = [each for each in waiting if each[0] not in ended]
        for index in decoding:
            answered[index] += 1
        for index in ended:
            answered[index] = 1
            times[index] = (now, now)
        for index, done in list(answered.items()):
            if done == requests[index].output:
                times[index] = (times[index][0], now)
                del answered[index]
                waiting += [pending.pop(0)] if pending else []
    return [times[index] for index in range(len(requests))]


@pytest.mark.parametrize("in_flight", [1, 3, 16])
def test_steps_at_once_are_steps_one_by_one(in_flight: int) -> None:
    requests = lengths(60)
    result = simulate(requests, step_model(), LOCK_STEP, in_flight=in_flight)
    expected = one_by_one(requests, step_model(), LOCK_STEP, in_flight)
    for each, (first_s, end_s) in zip(result.requests, expected, strict=True):
        assert each.first_s == pytest.approx(first_s, rel=1e-6)
        assert each.end_s == pytest.approx(end_s, rel=1e-6)


def test_the_host_works_ahead_of_the_device() -> None:
    one = [Request(prompt=100, output=100)]
    model = step_model()
    ahead, in_turn = (simulate(one, model, limits, in_flight=1) for limits in (LIMITS, LOCK_STEP))
    assert in_turn.seconds - ahead.seconds == pytest.approx(98 * model.host_s, rel=0.02)


def test_arrivals_are_sent_when_they_come() -> None:
    requests = [Request(prompt=100, output=10, arrival_s=float(second)) for second in range(20)]
    result = simulate(requests, step_model(), LIMITS)
    assert [each.sent_s for each in result.requests] == [each.arrival_s for each in requests]
    assert max(each.ttft_s for each in result.requests) < 0.05
    assert 19 < result.seconds < 19.2


def test_a_prompt_above_the_budget_is_computed_in_chunks() -> None:
    result = simulate([Request(prompt=5000, output=2)], step_model(), LIMITS, in_flight=1)
    assert result.steps == 3 + 1


def test_a_full_cache_preempts_and_everything_is_still_answered() -> None:
    requests = [Request(prompt=400, output=400) for _ in range(40)]
    small = replace(LIMITS, kv_tokens=10_000)
    result = simulate(requests, step_model(), small, in_flight=40)
    assert result.preemptions > 0
    assert result.peak_tokens < 10_000 + 400  # the last prompt was admitted whole
    assert all(each.end_s > each.first_s for each in result.requests)


def test_a_shared_prefix_is_computed_once() -> None:
    requests = [Request(prompt=1500, output=20, shared=1400) for _ in range(32)]
    cached = simulate(requests, step_model(), LIMITS, in_flight=4)
    computed = simulate(requests, step_model(), replace(LIMITS, prefix_cache=False), in_flight=4)
    assert cached.seconds < 0.7 * computed.seconds
    assert cached.requests[0].ttft_s > 2 * cached.requests[-1].ttft_s


def test_speculation_advances_by_its_acceptance_length() -> None:
    one = [Request(prompt=100, output=301)]
    result = simulate(one, step_model(draft=Draft(tokens=4, length=3.0)), LIMITS, in_flight=1)
    assert result.steps == 1 + 100


def test_a_busy_front_end_holds_requests_up_and_not_the_engine() -> None:
    requests = [Request(prompt=100, output=100) for _ in range(192)]
    slow = replace(ENGINE_ALONE, request_s=2e-3, message_s=2e-4)
    with_it = simulate(requests, step_model(coefficients=slow), LIMITS, in_flight=64)
    without = simulate(requests, step_model(), LIMITS, in_flight=64)
    assert with_it.seconds > without.seconds
    late, soon = (sum(each.ttft_s for each in run.requests) for run in (with_it, without))
    assert late > 1.5 * soon


def test_the_same_requests_give_the_same_times() -> None:
    requests = lengths(100, seed=3)
    first, second = (simulate(requests, step_model(), LIMITS, in_flight=8) for _ in range(2))
    assert [each.end_s for each in first.requests] == [each.end_s for each in second.requests]


def test_outside_of_a_graph_the_host_launches_every_layer_of_experts() -> None:
    model = step_model(replace(WORK, expert_layers=48))
    prompt = [Request(prompt=700, output=1)]
    (short,) = simulate(prompt, model, replace(LIMITS, graph_tokens=2048), in_flight=1).requests
    (long,) = simulate(prompt, model, replace(LIMITS, graph_tokens=512), in_flight=1).requests
    assert model.launch_s == pytest.approx(48 * TYPICAL.expert_host_s)
    assert long.ttft_s - short.ttft_s == pytest.approx(model.launch_s)


def test_ranks_have_graphs_of_their_own_and_launch_what_they_gather() -> None:
    model = step_model(replace(WORK, ranks=4, expert_layers=48))
    layers = TYPICAL.expert_host_s + TYPICAL.gather_host_s
    assert model.launch_s == pytest.approx(48 * layers)
    prompts = [Request(prompt=300, output=1)] * 4
    made = [
        simulate(prompts, model, replace(LIMITS, graph_tokens=size), in_flight=4).requests
        for size in (512, 256)
    ]
    assert made[1][3].ttft_s - made[0][3].ttft_s == pytest.approx(model.launch_s)
