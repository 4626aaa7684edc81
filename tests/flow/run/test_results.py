"""What a run comes to: claims over every start, differences over each concurrency's noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flow.rounds_stage import (
    KERNEL_LOG,
    PLAIN_LOG,
    Bench,
    build_bench,
    spec_of,
    story,
)
from whet.core.records.engine import StartFacts
from whet.core.records.evidence import EngineFacts, Verdict, VerdictSet
from whet.core.records.load import TrialRecord
from whet.core.records.summary import CellSummary
from whet.core.starts import every_start, store_start
from whet.core.store import RunStore
from whet.load import TrialInterrupted


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return build_bench(monkeypatch)


def weights_verdict(root: Path, name: str) -> Verdict:
    [kept] = [v for v in RunStore.read(root).all("verdicts", VerdictSet) if v.variant == name]
    [verdict] = [v for v in kept.verdicts if v.claim.kind == "weights"]
    return verdict


def test_a_claim_has_to_hold_in_every_start(bench: Bench, tmp_path: Path) -> None:
    bench.engine.logs = {("b", 1): KERNEL_LOG}
    story(bench, spec_of(tmp_path), tmp_path / "run")
    verdict = weights_verdict(tmp_path / "run", "b")
    assert verdict.outcome == "contradicted", "though the first and the last start prove it"
    assert "MarlinLinearKernel" in verdict.observed
    assert "in 1 of 3 starts" in verdict.observed
    assert weights_verdict(tmp_path / "run", "c").outcome == "proved"


def test_a_silent_start_leaves_a_claim_unproved(bench: Bench, tmp_path: Path) -> None:
    bench.engine.logs = {("b", 0): "nothing to say"}
    story(bench, spec_of(tmp_path), tmp_path / "run")
    verdict = weights_verdict(tmp_path / "run", "b")
    assert (verdict.outcome, "in 1 of 3 starts" in verdict.observed) == ("unproved", True)


def test_starts_that_run_on_unlike_backends_say_so(bench: Bench, tmp_path: Path) -> None:
    for number, name in enumerate(("FLASH_ATTN", "FLASH_ATTN", "TRITON_ATTN")):
        bench.engine.logs["b", number] = f"Using {name} attention backend\n{PLAIN_LOG}"
    story(bench, spec_of(tmp_path), tmp_path / "run")
    verdict = weights_verdict(tmp_path / "run", "b")
    assert verdict.outcome == "proved"
    assert verdict.observed.endswith(
        "; the starts differ in attention backend (FLASH_ATTN and TRITON_ATTN)"
    )
    assert "starts" not in weights_verdict(tmp_path / "run", "c").observed


def test_a_start_before_a_resume_counts_too(bench: Bench, tmp_path: Path) -> None:
    spec, root = spec_of(tmp_path, order="blocks"), tmp_path / "run"
    bench.engine.logs = {("b", 0): KERNEL_LOG}
    bench.stop_at = 8
    with pytest.raises(TrialInterrupted):
        story(bench, spec, root)
    assert bench.measured[-1][0] == "b"
    story(bench, spec, root, resume=True)
    verdict = weights_verdict(root, "b")
    assert (verdict.outcome, "in 1 of 2 starts" in verdict.observed) == ("contradicted", True)


def facts(version: str) -> EngineFacts:
    return EngineFacts(
        version=version,
        weight_kernels=(),
        quantized_layers=None,
        unquantized_layers=None,
        attention_backend=None,
        kv_cache_tokens=None,
        prefix_cache_enabled=None,
        async_scheduling=None,
        notices=(),
    )


def start(port: int) -> StartFacts:
    return StartFacts(variant="v", ready_s=1.0, canary_text="t", port=port, pid=None, attempts=1)


def test_starts_are_kept_in_order_and_the_newest_under_the_variants_name(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with RunStore.open(root) as store:
        assert every_start(store, "v") == ()
        for number in range(3):
            assert store_start(store, "v", start(number), (facts(str(number)), None)) == number
    store = RunStore.read(root)
    assert [one.version for one, _ in every_start(store, "v")] == ["0", "1", "2"]
    assert store.get("starts", "v", StartFacts) == start(2)
    assert store.get("starts", "earlier/v/0", StartFacts) == start(0)
    assert [path.name for path in (root / "starts").glob("*.json")] == ["v.json"]


def starts_of(root: Path, name: str) -> list[int | None]:
    trials = [one for one in RunStore.read(root).all("trials", TrialRecord) if one.variant == name]
    return [one.start for one in sorted(trials, key=lambda one: (one.load, one.trial))]


def test_each_trial_records_the_start_that_it_was_measured_on(bench: Bench, tmp_path: Path) -> None:
    story(bench, spec_of(tmp_path / "i"), tmp_path / "interleaved")
    assert starts_of(tmp_path / "interleaved", "c") == [0, 1, 2, 0, 1, 2]
    bench.engine.started.clear()
    story(bench, spec_of(tmp_path / "b", order="blocks"), tmp_path / "blocks")
    assert starts_of(tmp_path / "blocks", "b") == [0] * 6


def test_a_server_that_is_started_again_has_another_start_number(
    bench: Bench, tmp_path: Path
) -> None:
    """Stopped in the second trial of c, so that a resume measures the rest on a new server."""
    spec, root = spec_of(tmp_path, order="blocks"), tmp_path / "run"
    bench.stop_at = 2 * 6 + 3
    with pytest.raises(TrialInterrupted):
        story(bench, spec, root)
    bench.stop_at = None
    story(bench, spec, root, resume=True)
    assert sorted(starts_of(root, "c"), key=str) == [0, 0, 1, 1, 1, 1]
    [cell] = [x for x in RunStore.read(root).all("cells", CellSummary) if x.variant == "c"][:1]
    assert (cell.trials, cell.starts) == (3, 2)
