"""A continuous-batching server and a closed loop in front of it, simulated step by step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tests.metrics.events import trial
from whet.core.load import Load
from whet.core.records.load import RequestEvent, TrialRecord

_BUDGET = 2048
"""Tokens of one step."""


@dataclass(kw_only=True, slots=True)
class _Running:
    index: int
    scheduled_ms: float
    prompt_left: int
    output_left: int
    chunk_ms: list[float]


def closed_loop(*, slots: int, requests: int, seed: int, answer: float = 1 / 8) -> TrialRecord:
    """``requests`` in a closed loop of ``slots``; all times follow from the step time.

    A step takes 8 ms + 0.03 ms per running sequence + 0.05 ms per prefill token, with 3% jitter.
    85% of the prompts have 250 to 700 tokens, the others 1,400 to 2,600; an answer is that share of
    its prompt, at least 2.
    """
    rng = np.random.default_rng(seed)
    long = rng.random(requests) < 0.15
    prompts = np.where(long, rng.integers(1400, 2600, requests), rng.integers(250, 700, requests))
    to_send = deque(range(requests))
    running = [_start(to_send.popleft(), 0.0, prompts, answer) for _ in range(min(slots, requests))]
    now_ms, events = 0.0, list[RequestEvent]()
    while running:
        budget, prefill, produced = _BUDGET, 0, list[_Running]()
        for item in running:  # decoding sequences go first, then prompts in order of arrival
            if item.prompt_left == 0:
                budget -= 1
                produced.append(item)
        for item in running:
            if item.prompt_left and budget > 0:
                taken = min(item.prompt_left, budget)
                item.prompt_left -= taken
                budget -= taken
                prefill += taken
                if item.prompt_left == 0:
                    produced.append(item)
        step_ms = 8 + 0.03 * len(running) + 0.05 * prefill
        now_ms += step_ms * (1 + 0.03 * rng.standard_normal())
        for item in produced:
            item.chunk_ms.append(now_ms)
            item.output_left -= 1
        for item in [each for each in running if each.output_left == 0]:
            running.remove(item)
            events.append(_event(item))
            if to_send:
                running.append(_start(to_send.popleft(), now_ms, prompts, answer))
    return trial(sorted(events, key=lambda event: event.index), load=Load.at(slots))


def _start(index: int, now_ms: float, prompts: np.ndarray, answer: float) -> _Running:
    tokens = int(prompts[index])
    return _Running(
        index=index,
        scheduled_ms=now_ms,
        prompt_left=tokens,
        output_left=max(2, int(tokens * answer)),
        chunk_ms=[],
    )


def _event(item: _Running) -> RequestEvent:
    chunks = tuple(round(at * 1e6) for at in item.chunk_ms)
    scheduled_ns = round(item.scheduled_ms * 1e6)
    return RequestEvent(
        index=item.index,
        prefix_id=None,
        scheduled_ns=scheduled_ns,
        sent_ns=scheduled_ns,
        chunk_ns=chunks,
        ended_ns=chunks[-1],
        prompt_tokens=1,
        output_tokens=len(chunks),
        cached_tokens=None,
        finish_reason="length",
        text="x",
    )
