"""What an engine build gets wrong: known from a table, and met by the traffic or not."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests import records
from tests.engines.conftest import make_variant
from tests.flow.rounds_stage import Bench, build_bench, spec_of, story
from whet.core.records.engine import Speculation
from whet.core.records.load import TrafficFacts
from whet.core.run import Run
from whet.core.store import RunStore
from whet.engines.compatibility import compatibility_rows, known_faults
from whet.flow.run.conclude.conclude import decide_over
from whet.flow.run.conclude.faults import engine_faults, sampled_requests
from whet.report.run import run_document
from whet.report.run.verdict import title

PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo" / "run.tar.xz"
ACCEPTED = {"accept_unproved": ["speculation", "settings", "prefix_cache"]}
SPECULATION = {"method": "ngram", "num_tokens": 3}


def resolved(method: str, *, version: str = "0.32.0", device: str = "cpu", **more: Any) -> Any:
    speculation = Speculation(
        method=method, num_tokens=3, draft_path=None, options=more.pop("options", ())
    )
    return records.resolved(
        make_variant(speculation=speculation, **more), engine_version=version, device=device
    )


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle3", "suffix"])
def test_every_way_to_speculate_samples_wrongly_on_a_cpu(method: str) -> None:
    [fault] = known_faults(resolved(method))
    assert fault.outcome == "wrong if sampled"
    assert known_faults(resolved(method, version="0.31.1")) == ()
    assert known_faults(resolved(method, device="cuda")) == ()


def test_a_row_about_speed_hides_no_fault() -> None:
    slow = resolved("draft_model", loras=(("a", "/a"),))
    assert [row.outcome for row in known_faults(slow)] == ["wrong if sampled"]


def test_text_that_is_made_up_is_wrong_for_every_request() -> None:
    options = (("rejection_sample_method", "synthetic"),)
    [fault] = known_faults(resolved("eagle3", device="cuda", options=options))
    assert fault.outcome == "wrong text"


def test_a_stored_run_knows_the_machines_of_all_faults() -> None:
    rows = [row for row in compatibility_rows("vllm") if row.outcome.endswith(("text", "sampled"))]
    assert {row.machine for row in rows} <= {"any", "cpu", "cuda"}
    assert rows


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = build_bench(monkeypatch)
    made.passes = True
    made.speeds = {("spec", size): 2.0 for size in (1, 2)}
    return made


def measured(bench: Bench, folder: Path, temperature: float) -> Run:
    spec = spec_of(
        folder, trials=2, variants={"fp16": {}, "spec": {"speculation": SPECULATION}},
        evidence=ACCEPTED,
    )  # fmt: skip
    workload = spec.workload.model_copy(update={"temperature": temperature})
    story(bench, spec.model_copy(update={"workload": workload}), folder / "run")
    return Run.read(folder / "run")


def test_sampled_traffic_excludes_what_samples_wrongly(bench: Bench, tmp_path: Path) -> None:
    run = measured(bench, tmp_path, 0.7)
    assert run.decision is not None
    assert run.decision.recommendation is not None
    assert run.decision.recommendation.variant == "fp16"
    [out] = [item for item in run.decision.excluded if item.variant == "spec"]
    assert out.kind == "known fault"
    assert out.reason.endswith("and workload.temperature is 0.7")
    script = (run.root / "reproduce" / "spec" / "serve.sh").read_text()
    assert "# EXCLUDED from recommendation: vllm 0.32.0: speculation samples wrong" in script


def test_greedy_traffic_states_the_limit_wherever_the_recommendation_is(
    bench: Bench, tmp_path: Path
) -> None:
    run = measured(bench, tmp_path, 0.0)
    decision = run.decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.variant == "spec"
    [limit] = [each for each in decision.limits if "samples wrong text" in each]
    assert limit.startswith("greedy requests only: speculation samples wrong text")
    assert title(decision).endswith(", for greedy requests only")
    first = run_document(run).sections[0]
    assert (first.id, first.tone) == ("decision", "warn")
    assert f"G{limit[1:]}" in str(first)
    for name in ("serve.sh", "compose.yaml"):
        text = (run.root / "reproduce" / "spec" / name).read_text()
        assert f"# Limit: {limit}\n" in text
        assert "Limit" not in (run.root / "reproduce" / "fp16" / name).read_text()
    assert limit in json.loads((run.root / "decision.json").read_text())["limits"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (TrafficFacts(requests=10, greedy=10), None),
        (TrafficFacts(requests=10, greedy=9), "1 of 10 requests of the traffic"),
        (None, "was not stored"),
    ],
)
def test_a_log_is_greedy_only_where_every_request_asks_for_it(
    tmp_path: Path, facts: TrafficFacts | None, said: str | None
) -> None:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    root = tmp_path / "run"
    with RunStore.open(root, resume=True) as store:
        (root / "traffic" / "log.json").unlink()
        if facts is not None:
            store.put("traffic", "log", facts)
    run = Run.read(root)
    sampled = sampled_requests(run)
    faults, limits = engine_faults(run)
    chosen = decide_over([run]).recommendation
    assert chosen is not None
    if said is None:
        assert sampled is None
        assert (set(limits), faults) == ({"draft+cache", "awq+draft+cache"}, {})
        assert chosen.variant == "draft+cache"
    else:
        assert sampled is not None
        assert said in sampled
        assert said in faults["draft+cache"]
        assert chosen.variant == "fp16+cache"
