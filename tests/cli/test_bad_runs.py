"""Runs that cannot say all that was asked: one sentence, the exit code, and nothing lost."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Said, Whet, write_whole_spec
from tests.flow.rounds_stage import Bench, build_bench
from tests.flow.stage import install
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.store import RunStore

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
ONE_LOAD = {
    "order": "interleaved",
    "concurrency": [2],
    "trials": 2,
    "min_requests": 2,
    "requests_per_slot": 1,
    "warmup_requests": 2,
}
VARIANTS = {"fp16": {}, "d": {"args": {"seed": 1}}}
ACCEPTED = {"accept_unproved": ["speculation", "settings", "prefix_cache"]}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A scripted engine in vLLM's place, on which d is twice as fast as the default."""
    made = build_bench(monkeypatch, Bench(passes=True, speeds={("d", 2): 2.0}))
    install(made.engine, monkeypatch)
    return made


def ran(whet: Whet, folder: Path, *words: str, **change: Any) -> tuple[Said, Path]:
    """``whet run`` on a default and d, and the run's directory."""
    load = ONE_LOAD | change.pop("load", {})
    data = {"variants": VARIANTS, "evidence": ACCEPTED, "load": load} | change
    write_whole_spec(folder, **data)
    said = whet("run", "--output-dir", folder, "--name", "run", *words)
    return said, folder / "run"


def trials(root: Path) -> int:
    return len(RunStore.read(root).all("trials", TrialRecord))


def assert_reported(root: Path) -> None:
    for name in ("report.md", "report.html", "results.csv", "decision.json"):
        assert (root / name).stat().st_size > 0, name


@pytest.mark.parametrize("order", ["interleaved", "blocks"])
def test_one_start_of_each_gives_no_interval_and_says_so(
    whet: Whet, bench: Bench, tmp_path: Path, order: str
) -> None:
    said, root = ran(whet, tmp_path, load={"order": order, "trials": 1, "confirm": False})
    assert said.code == 0, said.err
    assert_reported(root)
    sentence = "One start of each configuration gives no interval; set load.trials to 2 or more"
    assert sentence in (root / "report.md").read_text()
    decision = Run.read(root).decision
    assert decision is not None
    best = decision.recommendation
    assert best is not None
    assert (best.meets, best.cheaper, best.measured_again) == ("likely", False, False)
    assert best.saving is not None
    assert (best.saving.low, best.saving.high) == (None, None)
    assert whet("decide", root).code == 0


def test_one_start_of_each_is_confirmed_by_fresh_starts(
    whet: Whet, bench: Bench, tmp_path: Path
) -> None:
    said, root = ran(whet, tmp_path, load={"trials": 1})
    assert said.code == 0, said.err
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.measured_again
    assert decision.recommendation.cheaper


def test_a_default_that_does_not_start_leaves_no_saving_to_state(
    whet: Whet, bench: Bench, tmp_path: Path
) -> None:
    bench.engine.refused = {("usual", 0)}
    variants = {"fp16": {}, "usual": {"prefix_cache": True}, "d": {"args": {"seed": 1}}}
    said, root = ran(whet, tmp_path, variants=variants)
    assert said.code == 0, said.err
    assert_reported(root)
    sentence = "usual does not qualify here, so there is no saving to state"
    assert sentence in (root / "report.md").read_text()
    decision = Run.read(root).decision
    assert decision is not None
    best = decision.recommendation
    assert best is not None
    assert (best.reference, best.saving, best.difference, best.cheaper) == (
        "usual", None, None, False
    )  # fmt: skip
    assert [(item.variant, item.kind) for item in decision.excluded] == [("usual", "failed")]
    bench.engine.refused.clear()
    bench.engine.started.clear()
    assert whet("run", "--output-dir", tmp_path, "--name", "run", "--resume").code == 0
    assert set(bench.engine.started[:2]) == {"usual"}, "and nothing that was measured"


def test_where_no_server_starts_the_run_ends_with_the_engines_code(
    whet: Whet, bench: Bench, tmp_path: Path
) -> None:
    bench.engine.refused = {("fp16", 0), ("d", 0)}
    said, root = ran(whet, tmp_path)
    assert said.sentence(5).startswith("no cell could be measured; ")
    assert_reported(root)


def test_a_limit_that_nobody_meets_ends_with_9_and_a_looser_one_needs_no_new_start(
    whet: Whet, bench: Bench, tmp_path: Path
) -> None:
    said, root = ran(whet, tmp_path, objective={"ttft_ms": [1.0], "recommend_ttft_ms": 1.0})
    assert said.sentence(9).startswith(
        "every cell was measured and none meets the objective with its evidence and quality; loosen"
    )
    assert_reported(root)
    before = trials(root)
    assert before == 4
    again = whet("decide", root)
    assert again.sentence(9) == said.sentence(9)
    bench.engine.started.clear()
    said, _ = ran(whet, tmp_path, "--resume")
    assert said.code == 0, said.err
    assert bench.engine.started == ["d", "fp16", "fp16", "d"], "the confirmation"
    assert trials(root) == before + 4


def test_finalists_that_all_fail_when_measured_again_end_with_9(
    whet: Whet, bench: Bench, tmp_path: Path
) -> None:
    bench.engine.refused = {(name, 2) for name in VARIANTS}
    said, root = ran(whet, tmp_path)
    assert said.sentence(9) == (
        "every cell that met the objective missed a limit, or failed, when it was measured again; "
        "add lower loads, or loosen objective.recommend_ttft_ms"
    )
    assert_reported(root)
    assert trials(root) == 4
    assert all(cell.tps_mean is not None for cell in Run.read(root).cells)
    said, _ = ran(whet, tmp_path, "--resume")
    assert said.code == 0, said.err
    assert trials(root) == 8


def test_an_interrupted_confirmation_is_not_decided_and_goes_on(
    whet: Whet, bench: Bench, tmp_path: Path
) -> None:
    bench.stop_at = 7  # a trial of the second fresh round
    said, root = ran(whet, tmp_path)
    assert said.code == 130
    assert trials(root) == 7
    refused = whet("decide", root)
    assert f"! {root}: The confirmation is not finished.\n" in refused.err
    assert (refused.code, "Traceback" in refused.err) == (6, False)
    shown = whet("report", root)
    assert (shown.code, "Traceback" in shown.err) == (0, False)
    bench.stop_at = None
    bench.engine.started.clear()
    said, _ = ran(whet, tmp_path, "--resume")
    assert said.code == 0, said.err
    assert len(bench.engine.started) == 2
    assert whet("decide", root).code == 0


def test_a_precision_in_the_spec_is_refused_with_what_is_done_now(
    whet: Whet, tmp_path: Path
) -> None:
    path = write_whole_spec(tmp_path)
    path.write_text(path.read_text().replace("  trials: 2\n", "  trials: 2\n  precision: 5%\n"))
    assert (
        whet("run")
        .sentence(2)
        .endswith(
            "load.precision is gone; remove the key: fresh starts are added until the "
            "difference is shown, load.max_starts of them at most"
        )
    )


Edit = Callable[[dict[str, Any]], None]


def published(folder: Path, tier: str, name: str = "", edit: Edit | None = None) -> Path:
    """The published run on another tier, with a change to one of its files."""
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    root = folder / "run"
    spec = json.loads((root / "resolved_spec.json").read_text())
    spec["hardware"]["tier"] = tier
    (root / "resolved_spec.json").write_text(json.dumps(spec))
    if edit is not None:
        data = json.loads((root / name).read_text())
        edit(data)
        (root / name).write_text(json.dumps(data))
    return root


@pytest.mark.parametrize(
    ("tier", "name", "edit", "sentence"),
    [
        pytest.param(
            "other",
            "models/target.json",
            lambda facts: facts.update(layers=99),
            "differ in their models (",
            id="another model",
        ),
        pytest.param(
            "other",
            "workloads/b008-t0.json",
            lambda facts: facts.update(input_tokens_mean=9.0),
            "differ in their traffic, ",
            id="other traffic",
        ),
        pytest.param(
            "first",
            "variants/fp16.json",
            lambda item: item.update(engine_version="0.33.0"),
            "two of these runs are of the tier 'first'; decide over one run a machine",
            id="another engine on one machine",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    whet: Whet, tmp_path: Path, tier: str, name: str, edit: Edit, sentence: str
) -> None:
    roots = (
        published(tmp_path / "one", "first"),
        published(tmp_path / "two", tier, name, edit),
    )
    said = whet("decide", *roots, "--quiet")
    assert sentence in said.sentence(2)
    assert said.out == ""
    assert [whet("decide", root, "--quiet").code for root in roots] == [0, 0]


def test_runs_of_two_cards_are_decided_together(whet: Whet, tmp_path: Path) -> None:
    roots = published(tmp_path / "one", "first"), published(tmp_path / "two", "other")
    said = whet("decide", *roots, "--json")
    assert said.code == 0, said.err
    tiers = {each["tier"] for each in json.loads(said.out)["decision"]["matrix"]}
    assert tiers == {"first", "other"}
