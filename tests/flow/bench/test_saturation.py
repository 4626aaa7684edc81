"""The search against servers of known capacity, and everything that ends it early."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.load.requests import bench_request
from tests.metrics.events import HEALTHY, event, failed, trial
from tests.scripted_server import Script, ScriptedServer, in_thread, scripted_server
from whet.core.errors import EngineLostError, MeasurementError, UsageError
from whet.core.protocols import Silent
from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.objective import Bound, LoadMeasurement, SearchObjective, SearchResult
from whet.demo import pair_paths
from whet.flow.bench import saturation as module
from whet.flow.bench.saturation import level_request, saturate
from whet.load import TrialInterrupted, TrialLost
from whet.load.arrivals import Arrivals
from whet.load.lengths import fixed
from whet.load.sources.request import BenchRequest, Row, Target
from whet.metrics import UNPRICED, summarise
from whet.metrics.objective_text import parse_objective
from whet.metrics.saturation import SearchPlan
from whet.requests import LoggedRequest

SLOW = SearchObjective(constraints=parse_objective("ttft:median<50ms"))


def request(url: str = "http://127.0.0.1:9", **given: Any) -> BenchRequest:
    return bench_request(**{
        "url": url, "tokenizer": str(pair_paths()[0]), "form": "ids",
        "requests": 20, "inputs": fixed(8), "outputs": fixed(2), **given,
    })  # fmt: skip


def slots(**given: Any) -> SearchPlan:
    return SearchPlan(**{"start": 1, "lowest": 1, "limit": 16, "integer": True, **given})


# A queue before one place of service: D/D/1 when open, TTFT = slots × service when closed


@dataclass
class QueueServer(ScriptedServer):
    """Serves one request at a time, in the order of arrival, each in ``service_s``."""

    service_s: float = 0.0
    free_at: float = 0.0

    async def _respond(
        self, method: str, path: str, key: str, body: bytes, out: asyncio.StreamWriter
    ) -> bool:
        if method == "POST":
            loop = asyncio.get_running_loop()
            self.free_at = due = max(loop.time(), self.free_at) + self.service_s
            await asyncio.sleep(due - loop.time())
        return await super()._respond(method, path, key, body, out)


def measured(found: SearchResult) -> Iterator[tuple[LoadMeasurement, TrialRecord]]:
    return zip(found.saturation.measurements, found.trials, strict=True)


@contextmanager
def queue_server(service_s: float) -> Iterator[ScriptedServer]:
    with in_thread(QueueServer(Script(), service_s=service_s)) as server:
        yield server


def test_the_highest_concurrency_of_a_queue() -> None:
    """TTFT is slots × 10 ms: five slots stay below 55 ms, six do not."""
    with queue_server(0.01) as server:
        found = saturate(
            request(server.url, requests=40),
            objective=SearchObjective(constraints=parse_objective("ttft:median<55ms")),
            axis="concurrency",
            plan=slots(),
            observer=Silent(),
            seconds=0,
        )
        prompts = [tuple(body["prompt"]) for body in server.requests]
    assert (found.saturation.highest_met, found.saturation.lowest_missed) == (5, 6)
    assert found.saturation.stopped == "found"
    sent = {m.level: len(t.requests) for m, t in measured(found) if m.effort == 1}
    assert sent == {1: 40, 2: 40, 4: 64, 8: 128, 6: 96, 5: 80}
    assert len(set(prompts)) == len(prompts) == sum(len(t.requests) for t in found.trials)


def test_nobody_answers_at_all() -> None:
    with pytest.raises(EngineLostError, match="cannot be reached"):
        search(request(), slots())


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_server_that_refuses_everything_is_no_answer(status: int) -> None:
    with scripted_server(status=status) as server:
        found = search(request(server.url, requests=4), slots())
        assert len(server.requests) == 16
    assert isinstance(found.error, MeasurementError)
    assert f"no request was answered: http_{status}" in str(found.error)
    assert found.saturation.measurements == ()


def test_a_server_that_turns_all_away_under_load_has_missed() -> None:
    with scripted_server(status=429) as server:
        found = search(request(server.url, requests=20), slots(start=2))
    assert (found.saturation.stopped, found.saturation.lowest_missed) == ("never met", 1)


# Hand-made trials


Answer = Callable[[BenchRequest, int], TrialRecord]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[BenchRequest]]:
    """Trials come from a function of the level's request and the trial's number."""

    def use(answer: Answer) -> list[BenchRequest]:
        asked: list[BenchRequest] = []

        def run_once(given: BenchRequest, _: Target, number: int) -> tuple[TrialRecord, None]:
            asked.append(given)
            return replace(answer(given, number), trial=number), None

        monkeypatch.setattr(module, "run_once", run_once)
        monkeypatch.setattr(module, "reach", lambda *_: Target(model="m", tokenizer=Path("tokens")))
        return asked

    return use


def search(given: BenchRequest, plan: SearchPlan, axis: Any = "concurrency") -> SearchResult:
    return saturate(given, objective=SLOW, axis=axis, plan=plan, observer=Silent(), seconds=20)


def served(ttft_ms: float, count: int = 40) -> TrialRecord:
    return trial([event(start_ms=30 * n, ttft_ms=ttft_ms, index=n) for n in range(count)])


def by_slots(given: BenchRequest, _: int) -> TrialRecord:
    """10 ms a slot: four stay below 50 ms, five do not."""
    return served(10.0 * given.concurrency)


def unfit(given: BenchRequest) -> TrialRecord:
    health = replace(HEALTHY, valid=False, reason="requests left 80 ms late")
    return replace(by_slots(given, 0), health=health)


def test_every_trial_has_its_own_number_and_every_level_its_requests(answers: Any) -> None:
    asked = answers(by_slots)
    found = search(request(requests=10), slots())
    assert found.saturation.highest_met == 4
    assert [item.trial for item in found.trials] == list(range(len(asked)))
    assert all(one.requests == max(10, 16 * one.concurrency) for one in asked)
    assert len(found.trials) == len(found.saturation.measurements)
    assert not found.interrupted


@pytest.mark.parametrize("burstiness", [1.0, 0.5, math.inf])
def test_the_kind_of_arrivals_stays(burstiness: float) -> None:
    arrivals = Arrivals(rate_rps=1.0, burstiness=burstiness)
    made = level_request(
        request(arrivals=arrivals, concurrency=7), "rate", level=12.5, scale=3, seconds=0
    )
    assert made.arrivals == replace(arrivals, rate_rps=12.5)
    assert (made.requests, made.concurrency, made.loop) == (60, 7, "open")


def test_a_rate_without_arrivals_is_poisson_and_not_capped() -> None:
    """A request without a rate is a closed loop of one, which must not cap the open loop."""
    made = level_request(request(), "rate", level=3, scale=1, seconds=0)
    assert made.arrivals == Arrivals(rate_rps=3)
    assert made.concurrency == 0


@pytest.mark.parametrize(
    ("level", "scale", "seconds", "requests"),
    [
        (0.5, 1, 20, 20),  # ten in 20 s, and 20 are asked for
        (1, 1, 20.5, 21),
        (100, 1, 20, 2000),
        (100, 3, 20, 6000),
        (100, 3, 0, 60),
    ],
)
def test_a_rate_is_sent_for_seconds_and_not_for_a_count_alone(
    level: float, scale: int, seconds: float, requests: int
) -> None:
    made = level_request(request(), "rate", level=level, scale=scale, seconds=seconds)
    assert made.requests == requests


@pytest.mark.parametrize(("most", "requests"), [(500, 500), (45, 60), (7000, 6000)])
def test_a_dataset_that_is_shorter_shortens_the_seconds_and_never_the_count(
    most: int, requests: int
) -> None:
    made = level_request(request(), "rate", level=100, scale=3, seconds=20, most=most)
    assert made.requests == requests


def test_a_search_over_a_dataset_sends_what_it_holds(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(lambda given, _: served(10))
    row = Row(request=LoggedRequest(place=""), prompt_token_ids=(1,), output_tokens=1)
    target = Target(model="m", tokenizer=Path("tokens"), rows=(row,) * 100)
    monkeypatch.setattr(module, "reach", lambda *_: target)
    search(request(warmup=10), SearchPlan(start=8, lowest=1, limit=8), "rate")
    assert [one.requests for one in asked] == [90]


def in_a_queue(given: BenchRequest, _: int) -> TrialRecord:
    """D/D/1: one request at a time, 9.5 ms each, at a constant rate."""
    gap_ms, free_ms, events = 1000 / given.rate_rps, 0.0, []  # type: ignore[operator]
    for n in range(given.requests):
        free_ms = max(free_ms, gap_ms * n) + 9.5
        ttft_ms = free_ms - gap_ms * n
        events.append(event(start_ms=gap_ms * n, ttft_ms=ttft_ms, gap_ms=0, index=n))
    return replace(trial(events), loop="open")


def test_the_highest_rate_of_a_queue(answers: Any) -> None:
    """Below 105 requests a second nobody waits; a growing queue has no interval, and is missed."""
    answers(in_a_queue)
    plan = SearchPlan(start=64, lowest=1, limit=512, tolerance=0.2)
    found = search(request(requests=80), plan, "rate")
    assert (found.saturation.highest_met, found.saturation.lowest_missed) == (96, 112)
    assert found.saturation.undecided_levels == (112, 128)
    sent = [(m.level, len(t.requests)) for m, t in measured(found)]
    assert sent[:4] == [(64, 1280), (128, 2560), (128, 10240), (128, 10240)]


def test_an_undecided_level_gets_more_requests(answers: Any) -> None:
    """Three requests are a wave: too short for any interval, so four times as many follow."""
    asked = answers(lambda given, _: served(10, count=3 if len(asked) < 2 else 40))
    found = search(request(), slots(limit=1))
    assert [one.requests for one in asked] == [20, 80]
    assert found.saturation.stopped == "never missed"


def test_a_client_that_is_late_once_is_asked_again(answers: Any) -> None:
    asked = answers(lambda given, number: unfit(given) if number == 1 else by_slots(given, 0))
    found = search(request(), slots())
    assert [one.concurrency for one in asked[:3]] == [1, 2, 2]
    assert found.saturation.highest_met == 4
    assert [item.trial for item in found.trials[:3]] == [0, 2, 3]
    assert len(found.trials) == len(found.saturation.measurements) == len(asked) - 1


def test_a_client_that_is_late_twice_ends_the_search_and_keeps_the_rest(answers: Any) -> None:
    answers(lambda given, n: unfit(given) if given.concurrency == 8 else by_slots(given, n))
    found = search(request(), slots())
    assert isinstance(found.error, MeasurementError)
    assert re.search("8 in flight could not.*80 ms late", str(found.error))
    assert (found.saturation.highest_met, found.saturation.lowest_missed) == (4, None)
    assert len(found.trials) == 3


@pytest.mark.parametrize("end", [TrialInterrupted, KeyboardInterrupt])
def test_a_stop_returns_what_was_measured(answers: Any, end: Any) -> None:
    def answer(given: BenchRequest, number: int) -> TrialRecord:
        if number < 5:
            return by_slots(given, number)
        raise end() if end is KeyboardInterrupt else end("stopped", record=served(1))

    answers(answer)
    found = search(request(), slots())
    assert found.interrupted
    assert (found.saturation.highest_met, found.saturation.lowest_missed) == (4, 6)
    assert len(found.trials) == 5


def test_a_stop_in_the_first_trial_decides_nothing(answers: Any) -> None:
    def answer(*_: Any) -> TrialRecord:
        raise TrialInterrupted("stopped", record=served(1))

    answers(answer)
    found = search(request(), slots())
    assert found.interrupted
    assert found.saturation.measurements == found.trials == ()
    assert (found.saturation.highest_met, found.saturation.lowest_missed) == (None, None)


def test_a_server_that_dies_between_trials_keeps_what_was_measured(answers: Any) -> None:
    def answer(given: BenchRequest, number: int) -> TrialRecord:
        if number == 2:
            raise TrialLost("gone", record=replace(served(1), status="failed"))
        return by_slots(given, number)

    answers(answer)
    found = search(request(), slots())
    assert isinstance(found.error, EngineLostError)
    assert str(found.error) == "gone"
    assert found.saturation.highest_met == 2
    assert len(found.trials) == 2


def test_a_trial_that_nobody_answered_asks_whether_the_server_is_there(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(given: BenchRequest) -> list[RequestEvent]:
        return [failed(start_ms=n, word="connect") for n in range(given.requests)]

    def reach(*_: Any) -> Target:
        if len(asked) >= 3:
            raise EngineLostError("nothing answers")
        return Target(model="m", tokenizer=Path("tokens"))

    asked = answers(lambda given, n: trial(events(given)) if n == 2 else by_slots(given, n))
    monkeypatch.setattr(module, "reach", reach)
    found = search(request(), slots())
    assert isinstance(found.error, EngineLostError)
    assert str(found.error) == "nothing answers"
    assert found.saturation.highest_met == 2


def test_a_level_that_fails_whole_after_others_answered_is_missed(answers: Any) -> None:
    def answer(given: BenchRequest, number: int) -> TrialRecord:
        if given.concurrency > 2:
            return trial([failed(start_ms=n, word="reset") for n in range(20)])
        return by_slots(given, number)

    answers(answer)
    found = search(request(), slots())
    assert (found.saturation.highest_met, found.saturation.lowest_missed) == (2, 3)
    rates = [summarise([each], cell=UNPRICED).rps_mean for each in found.trials]
    levels = [each.level for each in found.saturation.measurements]
    assert {at for at, rate in zip(levels, rates, strict=True) if rate is None} == {3, 4}


def test_traffic_that_a_level_cannot_have_keeps_what_was_measured(answers: Any) -> None:
    def answer(given: BenchRequest, number: int) -> TrialRecord:
        if number == 1:
            raise UsageError("the file holds 20 prompts; give a longer one")
        return by_slots(given, number)

    answers(answer)
    found = search(request(), slots())
    assert isinstance(found.error, MeasurementError)
    assert "20 prompts" in str(found.error)
    assert found.saturation.highest_met == 1


def test_what_the_first_trial_refuses_is_a_usage_error(answers: Any) -> None:
    def answer(*_: Any) -> TrialRecord:
        raise UsageError("no such file")

    answers(answer)
    with pytest.raises(UsageError, match="no such file"):
        search(request(), slots())


# Bad input


@pytest.mark.parametrize(
    ("given", "axis", "said"),
    [
        ({"arrivals": Arrivals(rate_rps=1.0)}, "concurrency", "closed loop"),
        ({"arrivals": Arrivals()}, "rate", "no rate to search over"),
        ({"arrivals": Arrivals(speed=1.0)}, "rate", "no rate to search over"),
    ],
)
def test_traffic_that_has_no_such_level(given: Any, axis: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        search(request(**given), slots(), axis)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_seconds_that_are_no_time(seconds: float) -> None:
    with pytest.raises(UsageError, match="--find-seconds"):
        saturate(
            request(), objective=SLOW, axis="rate", plan=slots(), observer=Silent(), seconds=seconds
        )


def test_a_concurrency_is_whole(answers: Any) -> None:
    answers(by_slots)
    with pytest.raises(UsageError, match="whole number"):
        search(request(), slots(start=1.5, integer=False))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one objective"),
        ({"constraints": SLOW.constraints, "bounds": (Bound(metric="ttft", limit_ms=1),)}, "one"),
        (
            {"bounds": (Bound(metric="ttft", limit_ms=1),), "share": 0.0},
            "must be between 0 and 1 \\(got 0",
        ),
        (
            {"bounds": (Bound(metric="ttft", limit_ms=1),), "share": 1.0},
            "must be between 0 and 1 \\(got 1",
        ),
    ],
)
def test_an_objective_that_cannot_be_asked(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        saturate(
            request(),
            objective=SearchObjective(**given),
            axis="rate",
            plan=slots(),
            observer=Silent(),
            seconds=0,
        )
