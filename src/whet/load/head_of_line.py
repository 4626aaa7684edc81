"""Head of line: short requests at a steady rate, and one long prompt after another among them.

    find_pace ─▶ Pace ─▶ mixed_traffic ─▶ run_trial (open loop) ─▶ HeadOfLineRecord

The loop is open, because in a closed one hardly any short request would arrive during a long
prefill: its slots are stalled then, and what nobody sends nobody waits for (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from whet.core.errors import MeasurementError
from whet.core.records import HeadOfLineRecord, PlannedRequest, RequestEvent, TrialRecord
from whet.core.units import NS_PER_S, ns_to_s
from whet.load.arrivals import Arrivals, arrival_offsets_ns, requests_within
from whet.load.lengths import Independent, fixed
from whet.load.plan import Draw, TrialPlan, Workload, describe_requests
from whet.load.synthetic import SyntheticLoad, SyntheticShape, build_synthetic
from whet.load.trial import run_trial

RATE_SHARE: Final = 0.5
"""The short ones come at half the rate that ``slots`` in a closed loop complete: an open loop near
its server's capacity queues whether a long prompt came or not."""

PERIOD_PREFILLS: Final = 3
"""From one long prompt to the next lie three of its own prefills and one whole short request, so
that about a third of the time is under a prefill and what queued up behind it drains before the
next."""

_SHORTS_A_SLOT: Final = 8
_LONGS_ALONE: Final = 3
# A draw each, so that no prompt of the test finds its twin from the pace in a prefix cache.
_PACE_SHORT, _PACE_LONG, _SHORT, _LONG = range(4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Mean rate of the short requests, and the time from one long prompt to the next."""

    rate_rps: float
    period_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOfLinePlan:
    """What to send to one server. Lengths in tokens; a long prompt asks for one token of output.

    ``pace`` None has it found on this server first; servers that are to be compared share one.
    """

    variant: str
    long_tokens: int
    long_requests: int = 8
    short_tokens: int = 32
    short_output: int = 16
    slots: int = 4
    seed: int = 0
    block_size: int = 16
    request_timeout_s: float = 120.0
    pace: Pace | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The server under test. ``vocabulary`` is what prompts are drawn from (``ordinary_ids``).

    ``alive`` raises ``EngineLostError`` if the engine is gone; ``device`` is as in ``TrialPlan``.
    """

    url: str
    model: str
    vocabulary: Sequence[int]
    alive: Callable[[], None]
    device: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedTraffic:
    """Requests in the order in which they are due, beside their offsets from the start in ns.

    ``warmup`` is sent before: a server given its pace has seen no long prompt yet.
    """

    requests: tuple[PlannedRequest, ...]
    warmup: tuple[PlannedRequest, ...]
    offsets_ns: tuple[int, ...]
    long_indices: tuple[int, ...]


def run_head_of_line(target: Target, plan: HeadOfLinePlan) -> HeadOfLineRecord:
    """Measure one server once; every request of the plan becomes an event, whatever came of it.

    Raises ``MeasurementError`` where no pace can be found, ``TrialLost`` and ``TrialInterrupted``
    as ``run_trial`` does. Every prompt is unique, so that no prefix cache can answer it.
    """
    pace = plan.pace or find_pace(target, plan)
    mixed = mixed_traffic(target.vocabulary, plan, pace)
    facts = describe_requests(mixed.requests, block_size=plan.block_size, seed=plan.seed)
    trial = _run(
        target,
        TrialPlan(
            variant=plan.variant,
            batch_size=0,
            trial=0,
            workload=Workload(requests=mixed.requests, facts=facts),
            warmup=mixed.warmup,
            request_timeout_s=plan.request_timeout_s,
            loop="open",
            offsets_ns=mixed.offsets_ns,
        ),
    )
    return HeadOfLineRecord(
        variant=plan.variant,
        long_tokens=plan.long_tokens,
        short_tokens=plan.short_tokens,
        short_output=plan.short_output,
        slots=plan.slots,
        rate_rps=pace.rate_rps,
        period_ns=pace.period_ns,
        long_indices=mixed.long_indices,
        trial=trial,
    )


def find_pace(target: Target, plan: HeadOfLinePlan) -> Pace:
    """The pace for this server: short requests alone in ``slots``, then long ones one by one.

    By Little's law ``slots`` ÷ E2E requests a second are completed. Medians, so that a shape that
    the server meets for the first time does not set the pace. ``MeasurementError`` where no request
    of a kind is answered, with the word for what came instead.
    """
    shorts = _short(target.vocabulary, plan, _PACE_SHORT, _SHORTS_A_SLOT * plan.slots, plan.slots)
    longs = _long(target.vocabulary, plan, _PACE_LONG, _LONGS_ALONE, 1)
    short_ns = _median_ns(
        _alone(target, plan, shorts, slots=plan.slots), "short", lambda e: e.ended_ns
    )
    long_ns = _median_ns(_alone(target, plan, longs, slots=1), "long", lambda e: e.chunk_ns[0])
    return Pace(
        rate_rps=RATE_SHARE * plan.slots * NS_PER_S / short_ns,
        period_ns=round(PERIOD_PREFILLS * long_ns + short_ns),
    )


def mixed_traffic(vocabulary: Sequence[int], plan: HeadOfLinePlan, pace: Pace) -> MixedTraffic:
    """The first long request is due after one period; short ones go on for one after the last.

    Equal arguments give equal traffic.
    """
    long_ns = [pace.period_ns * (number + 1) for number in range(plan.long_requests)]
    short_ns = _arrivals(pace, until_ns=long_ns[-1] + pace.period_ns, seed=plan.seed)
    shorts = _short(vocabulary, plan, _SHORT, len(short_ns), plan.slots)
    longs = _long(vocabulary, plan, _LONG, len(long_ns), 1)
    due = [(at_ns, False, r) for at_ns, r in zip(short_ns, shorts.workload.requests, strict=True)]
    due += [(at_ns, True, r) for at_ns, r in zip(long_ns, longs.workload.requests, strict=True)]
    due.sort(key=lambda item: item[0])
    return MixedTraffic(
        requests=tuple(replace(request, index=at) for at, (_, _, request) in enumerate(due)),
        warmup=(*longs.warmup, *shorts.warmup),
        offsets_ns=tuple(at_ns for at_ns, _, _ in due),
        long_indices=tuple(at for at, (_, long, _) in enumerate(due) if long),
    )


def _arrivals(pace: Pace, *, until_ns: int, seed: int) -> list[int]:
    """Poisson arrivals see the server as it is on average (PASTA); an even beat could lock to it.

    At least one, at 0.
    """
    poisson = Arrivals(kind="poisson", rate_rps=pace.rate_rps)
    expected = requests_within(poisson, duration_s=ns_to_s(until_ns))
    plenty = 2 * expected + 16  # cut at the end, so that the time is filled and not the number
    drawn = arrival_offsets_ns(poisson, requests=plenty, seed=seed)
    return [at_ns for at_ns in drawn if at_ns <= until_ns]


def _short(
    vocabulary: Sequence[int], plan: HeadOfLinePlan, draw: int, requests: int, warmup: int = 0
) -> SyntheticLoad:
    tokens = Independent(input=fixed(plan.short_tokens), output=fixed(plan.short_output))
    return _build(vocabulary, plan, tokens, _draw(plan, draw, requests), warmup)


def _long(
    vocabulary: Sequence[int], plan: HeadOfLinePlan, draw: int, requests: int, warmup: int = 0
) -> SyntheticLoad:
    tokens = Independent(input=fixed(plan.long_tokens), output=fixed(1))
    return _build(vocabulary, plan, tokens, _draw(plan, draw, requests), warmup)


def _build(
    vocabulary: Sequence[int], plan: HeadOfLinePlan, tokens: Independent, draw: Draw, warmup: int
) -> SyntheticLoad:
    shape = SyntheticShape(lengths=tokens, seed=plan.seed)
    return build_synthetic(shape, vocabulary, draw=draw, warmup=warmup)


def _draw(plan: HeadOfLinePlan, number: int, requests: int) -> Draw:
    return Draw(requests=requests, batch_size=plan.slots, trial=number, block_size=plan.block_size)


def _alone(target: Target, plan: HeadOfLinePlan, load: SyntheticLoad, *, slots: int) -> TrialRecord:
    """Requests of one kind in a closed loop."""
    return _run(
        target,
        TrialPlan(
            variant=plan.variant,
            batch_size=slots,
            trial=0,
            workload=load.workload,
            warmup=load.warmup,
            request_timeout_s=plan.request_timeout_s,
        ),
    )


def _run(target: Target, plan: TrialPlan) -> TrialRecord:
    plan = replace(plan, device=target.device)
    return run_trial(target.url, target.model, plan=plan, memory=lambda: None, alive=target.alive)


def _median_ns(trial: TrialRecord, kind: str, until: Callable[[RequestEvent], int]) -> float:
    """The median time from the schedule to ``until`` over the requests that were answered."""
    answered = [event for event in trial.requests if event.error is None]
    if not answered:
        word = next((f"{e.error}: {e.detail}" for e in trial.requests if e.error), trial.failure)
        raise MeasurementError(
            f"the head-of-line test got no answer to any {kind} request ({word}); correct "
            f"load.head_of_line.{kind}_tokens or what the server says"
        )
    return median(until(event) - event.scheduled_ns for event in answered)
