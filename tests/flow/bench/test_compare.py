"""Two servers under one load: the order, the pairs, the floor, and what ends it early."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.load.requests import bench_request
from tests.metrics.events import HEALTHY, steady, trial
from tests.scripted_server import Script, ScriptedServer, in_thread, scripted_server
from whet.core.bench_options import CompareOptions
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, UsageError
from whet.core.protocols import Silent
from whet.core.records.load import TrialRecord
from whet.demo import pair_paths
from whet.flow.bench import compare as module
from whet.flow.bench.compare import AgainstResult, bench_against, require_comparison
from whet.load import TrialInterrupted, TrialLost
from whet.load.arrivals import Arrivals
from whet.load.lengths import fixed
from whet.load.sources.request import BenchRequest, Target

TOKENIZER = pair_paths()[0]
A, B = "http://127.0.0.1:8", "http://127.0.0.1:9"


def request(url: str = A, **change: Any) -> BenchRequest:
    return bench_request(**{
        "url": url, "model": None, "tokenizer": str(TOKENIZER), "form": "ids", "requests": 8,
        "inputs": fixed(24), "outputs": fixed(3),
        "concurrency": 2, "runs": 4, **change,
    })  # fmt: skip


def measure(a: str, b: str, against_model: str | None = None, **change: Any) -> AgainstResult:
    return bench_against(
        request(a, **change), CompareOptions(against=b, against_model=against_model), Silent()
    )


# The order, and what ends it early: every trial is made up


@dataclass
class Stage:
    """Takes the place of both servers; ``at`` says what each trial, by its place, comes to."""

    at: dict[int, Callable[[TrialRecord], TrialRecord]] = field(default_factory=dict)
    sent: list[tuple[str, str, int]] = field(default_factory=list)

    def run_once(self, asked: BenchRequest, target: Target, number: int) -> tuple[TrialRecord, Any]:
        place = len(self.sent)
        self.sent.append((asked.url, target.model, number))
        made = replace(trial(steady(40), number=number), variant=target.model)
        return self.at.get(place, lambda record: record)(made), None

    def reach_both(self, *_: Any) -> tuple[Target, Target]:
        return (
            Target(model="one", tokenizer=Path(TOKENIZER)),
            Target(model="two", tokenizer=Path(TOKENIZER)),
        )


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(module, "run_once", made.run_once)
    monkeypatch.setattr(module, "_reach_both", made.reach_both)
    monkeypatch.setattr(module, "report_trial", lambda *_: None)
    return made


def stop(error: type[TrialInterrupted] | type[TrialLost]) -> Callable[[TrialRecord], TrialRecord]:
    status = "interrupted" if error is TrialInterrupted else "failed"

    def raised(record: TrialRecord) -> TrialRecord:
        raise error("ended", record=replace(record, status=status, failure="ended"))

    return raised


def test_the_order_is_abba_and_a_pair_shares_its_number(stage: Stage) -> None:
    found = measure(A, B)
    assert "".join("A" if url == A else "B" for url, _, _ in stage.sent) == "ABBAABBA"
    assert [number for _, _, number in stage.sent] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {(url, model) for url, model, _ in stage.sent} == {(A, "one"), (B, "two")}
    assert [t.trial for t in found.runs[0].trials] == [t.trial for t in found.runs[1].trials]
    assert (
        found.compared.pairs,
        isinstance(found.error, Interrupted),
        found.compared.warnings,
    ) == (4, False, ())
    assert (found.compared.a, found.compared.b) == (f"{A} (one)", f"{B} (two)")
    require_comparison(found)


@pytest.mark.parametrize(("place", "pairs", "undecided"), [(2, 1, True), (5, 2, False)])
def test_a_stop_keeps_the_whole_pairs(
    stage: Stage, place: int, pairs: int, undecided: bool
) -> None:
    stage.at[place] = stop(TrialInterrupted)
    found = measure(A, B)
    assert (
        isinstance(found.error, Interrupted),
        found.compared.pairs,
        found.compared.warnings,
    ) == (True, pairs, ())
    assert {item.verdict for item in found.compared.comparisons} == {
        "undecided" if undecided else "no difference"
    }
    assert len(found.runs[0].trials) + len(found.runs[1].trials) == place + 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, Interrupted("stopped by SIGTERM")])
def test_a_stop_between_two_trials(stage: Stage, error: BaseException) -> None:
    def between(_: TrialRecord) -> TrialRecord:
        raise error

    stage.at[1] = between
    found = measure(A, B)
    assert (
        isinstance(found.error, Interrupted),
        found.compared.pairs,
        found.compared.comparisons,
    ) == (True, 0, ())
    assert len(found.runs[0].trials) == 1
    assert found.runs[1].trials == ()


def test_a_server_that_is_lost_keeps_the_whole_pairs(stage: Stage) -> None:
    stage.at[5] = stop(TrialLost)
    found = measure(A, B)
    assert isinstance(found.error, TrialLost)
    assert str(found.error) == "ended"
    assert found.compared.pairs == 2
    assert len(found.runs[1].trials) == 3
    assert "B, trial 2 failed: ended" in found.compared.warnings[0]


def spoilt(record: TrialRecord) -> TrialRecord:
    return replace(record, health=replace(HEALTHY, valid=False, reason="sent late"))


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ((1, 2, 5, 6), r":9 \(two\): no run can be believed"),  # every trial of B
        ((0, 2, 4, 6), "no run is usable on both servers: run 1 of both"),
        ((0, 4, 7), "too few runs are usable on both servers: run 1 of both"),
    ],
)
def test_a_side_that_cannot_be_believed(stage: Stage, places: tuple[int, ...], told: str) -> None:
    stage.at.update(dict.fromkeys(places, spoilt))
    found = measure(A, B)
    with pytest.raises(MeasurementError, match=told):
        require_comparison(found)


# Bad input


@pytest.mark.parametrize("runs", [1, 3])
def test_trials_that_make_no_whole_blocks(stage: Stage, runs: int) -> None:
    with pytest.raises(UsageError, match="an even number, 2 or more"):
        measure(A, B, runs=runs)
    assert stage.sent == []


@dataclass
class Rooted(ScriptedServer):
    """A server that tells where its model lies."""

    root: str = ""

    def _get(self, path: str) -> tuple[int, str, str]:
        if path != "/v1/models":
            return super()._get(path)
        entry = {"id": self.script.model, "object": "model", "root": self.root}
        return 200, "application/json", json.dumps({"object": "list", "data": [entry]})


def other_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> str:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (TOKENIZER / name).is_file():
            shutil.copy(TOKENIZER / name, folder / name)
    told = json.loads((folder / "tokenizer.json").read_text())
    change(told)
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return str(folder)


def swap_two_ids(told: dict[str, Any]) -> None:
    vocab = told["model"]["vocab"]
    one, two = list(vocab)[-2:]
    vocab[one], vocab[two] = vocab[two], vocab[one]


def test_models_with_different_tokenizers_are_refused(tmp_path: Path) -> None:
    root = other_tokenizer(tmp_path, swap_two_ids)
    with (
        in_thread(Rooted(Script(), root=str(TOKENIZER))) as a,
        in_thread(Rooted(Script(), root=root)) as b,
    ):
        with pytest.raises(UsageError, match="different tokenizers") as refused:
            measure(a.url, b.url, tokenizer=None)
        assert "first server's model" in str(refused.value)
        assert a.requests == b.requests == []
        found = measure(a.url, b.url, runs=2)
    assert len(found.runs[1].trials) == 2, "--tokenizer is one for both"


def test_a_second_server_with_the_same_tokenizer_or_none_told(tmp_path: Path) -> None:
    root = other_tokenizer(tmp_path, lambda _: None)
    with in_thread(Rooted(Script(ttft_s=0.01), root=str(TOKENIZER))) as a:
        with in_thread(Rooted(Script(ttft_s=0.01), root=root)) as b:
            assert len(measure(a.url, b.url, tokenizer=None, runs=2).runs[1].trials) == 2
        with scripted_server(ttft_s=0.01) as b:
            assert len(measure(a.url, b.url, tokenizer=None, runs=2).runs[1].trials) == 2


def test_one_model_of_one_server_twice_is_refused() -> None:
    with scripted_server() as a:
        with pytest.raises(UsageError, match="prefix cache would answer every second trial"):
            measure(a.url, f"{a.url}/v1/")
        assert a.requests == []


def test_the_second_servers_model() -> None:
    with scripted_server() as a, scripted_server(model="other") as b:
        with pytest.raises(UsageError, match="--against-model takes one of other") as refused:
            measure(a.url, b.url, "gone")
        assert str(refused.value).startswith(b.url)
        with pytest.raises(UsageError, match="--against-model takes one of other"):
            measure(a.url, b.url, model="scripted")
        found = measure(a.url, b.url, "other", model="scripted", runs=2)
    assert (found.compared.a, found.compared.b) == (f"{a.url} (scripted)", f"{b.url} (other)")


def test_a_second_server_that_is_not_there() -> None:
    with scripted_server() as a:
        with pytest.raises(EngineLostError, match="cannot be reached"):
            measure(a.url, B)
        assert a.requests == []


# Real trials against scripted servers


class Log(list[dict[str, Any]]):
    """Keeps what a server receives, and tells it to a list that both servers share."""

    def __init__(self, name: str, shared: list[tuple[str, tuple[int, ...]]]) -> None:
        super().__init__()
        self.name, self.shared = name, shared

    def append(self, body: dict[str, Any]) -> None:
        super().append(body)
        self.shared.append((self.name, tuple(body["prompt"])))


def test_both_servers_see_the_same_prompts_in_turn() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []
    with (
        in_thread(ScriptedServer(Script(ttft_s=0.005), requests=Log("A", seen))) as a,
        in_thread(ScriptedServer(Script(ttft_s=0.005), requests=Log("B", seen))) as b,
    ):
        found = measure(a.url, b.url, warmup=2)
    blocks = [seen[at : at + 10] for at in range(0, len(seen), 10)]
    assert ["".join(sorted({name for name, _ in block})) for block in blocks] == list("ABBAABBA")
    prompts = [frozenset(prompt for _, prompt in block) for block in blocks]
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[3]
    assert len(frozenset().union(*prompts)) == 40, "a server never sees a prompt twice"
    hashes = [[t.workload_sha256 for t in server.trials] for server in found.runs]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 4


def test_both_servers_get_the_same_arrivals() -> None:
    with scripted_server(ttft_s=0.005) as a, scripted_server(ttft_s=0.005) as b:
        arrivals = Arrivals(rate_rps=400.0)
        found = measure(a.url, b.url, arrivals=arrivals, concurrency=None, runs=2)
    times = [[[e.scheduled_ns for e in t.requests] for t in server.trials] for server in found.runs]
    assert times[0] == times[1]
    assert times[0][0] != times[0][1]


def test_a_server_whose_first_token_is_late_is_worse() -> None:
    with scripted_server(ttft_s=0.05) as a, scripted_server(ttft_s=0.3) as b:
        found = measure(a.url, b.url, requests=15, concurrency=3)
    (ttft,) = [item for item in found.compared.comparisons if item.metric == "ttft_p50_ms"]
    assert ttft.verdict == "worse"
    assert ttft.ratio.value > 2
    require_comparison(found)
