"""What a run directory teaches: rows that its evidence proves, and starts that blame one lever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from whet.core.errors import StorageError
from whet.core.provenance import Device, Environment
from whet.core.records import (
    Claim,
    ResolvedEngine,
    Speculation,
    StartFacts,
    Variant,
    Verdict,
    VerdictSet,
)
from whet.core.store import RunStore, write_json
from whet.engines.compatibility import Row, own_rows
from whet.engines.machine import Machine
from whet.flow import learning
from whet.flow.learning import learn, learn_into_own

EPYC = Device(kind="cpu", name="EPYC × 2", memory_bytes=2**34, count=1, driver=None)
NO_KERNEL = "ValueError: Failed to find a kernel that can implement the WNA16 linear layer\n"
PLAIN = Variant(
    name="plain",
    weights="16bit",
    scheme="16bit",
    model_path="/models/target",
    speculation=None,
    prefix_cache=False,
)
AWQ = replace(PLAIN, name="awq", weights="awq", scheme="W4A16", recipe_schemes=("W4A16",))


@dataclass
class Bench:
    """A run directory that is written by hand."""

    store: RunStore

    def put(self, variant: Variant, *, version: str = "0.32.1", **outcomes: str) -> None:
        """A variant that came up, and the outcomes of its claims."""
        self._variant(variant, version)
        start = StartFacts(
            variant=variant.name, ready_s=1.0, canary_text="a", port=1, pid=None, attempts=1
        )
        self.store.put("starts", variant.name, start)
        verdicts = tuple(
            _verdict(variant.name, kind, outcome)
            for kind, said in outcomes.items()
            for outcome in said.split()
        )
        self.store.put(
            "verdicts", variant.name, VerdictSet(variant=variant.name, verdicts=verdicts)
        )

    def fail(self, variant: Variant, log: str | None = NO_KERNEL) -> None:
        """A variant whose server did not start."""
        self._variant(variant, "0.32.1")
        self.store.note("starts", variant.name, status="failed", reason="no kernel;\nchoose more")
        if log is not None:
            path = self.store.path("logs", f"{variant.name}.log")
            path.parent.mkdir(exist_ok=True)
            path.write_text(log)

    def learned(self) -> dict[str, Row]:
        return {row.lever: row for row in learn(RunStore.read(self.store.root))}

    def _variant(self, variant: Variant, version: str) -> None:
        resolved = ResolvedEngine(
            variant=variant,
            engine="vllm",
            engine_version=version,
            device="cpu",
            served_model_name="m",
            argv=(),
            env=(),
            serve_line="",
            ready_timeout_s=1.0,
        )
        self.store.put("variants", variant.name, resolved)


def _verdict(variant: str, kind: str, outcome: str) -> Verdict:
    claim = Claim(kind=kind, statement="s", expected="e", per_cell=False)
    return Verdict(
        variant=variant, batch_size=None, claim=claim, outcome=outcome, observed="o", sources=()
    )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(learning, "find_device", lambda: replace(EPYC, name="EPYC × 64"))
    monkeypatch.setattr(learning, "find_machine", lambda kind: Machine(kind=kind, vectors="avx512"))
    with RunStore.open(tmp_path / "run") as store:
        write_json(store.path("environment.json"), environment(EPYC))
        yield Bench(store)


def environment(device: Device) -> Environment:
    return Environment(
        started_at="2026-11-21T00:00:00+00:00",
        device=device,
        cpu="EPYC",
        cpu_count=2,
        ram_bytes=2**34,
        os="Linux",
        python="3.11",
        packages=(),
        git_commit=None,
    )


def test_a_proved_claim_is_a_lever_that_works(bench: Bench) -> None:
    ngram = Speculation(method="ngram", num_tokens=3, draft_path=None)
    both = replace(AWQ, prefix_cache=True, speculation=ngram)
    bench.put(both, weights="proved", prefix_cache="proved proved", speculation="proved unproved")
    found = bench.learned()
    assert set(found) == {"weights_scheme=W4A16", "prefix_cache"}
    row = found["prefix_cache"]
    assert (row.engine, row.since, row.until) == ("vllm", "0.32", "0.33")
    assert (row.machine, row.outcome, row.basis) == (
        "cpu-avx512",
        "works",
        "seen 0.32.1 cpu-avx512",
    )


def test_what_is_not_a_lever_is_not_learned(bench: Bench) -> None:
    bench.put(replace(PLAIN, engine_args=(("max_model_len", 512),)), weights="proved")
    assert bench.learned() == {}


def test_that_it_runs_does_not_make_it_fast(bench: Bench) -> None:
    fp8 = replace(AWQ, scheme="FP8", recipe_schemes=("FP8_DYNAMIC",))
    bench.put(fp8, weights="proved")
    assert bench.learned()["weights_scheme=FP8_DYNAMIC"].outcome == "works, slow"


def test_what_was_said_to_fail_and_is_proved_works(bench: Bench) -> None:
    bench.put(replace(AWQ, scheme="W8A16", recipe_schemes=("W8A16",)), weights="proved")
    row = bench.learned()["weights_scheme=W8A16"]
    assert (row.outcome, row.says) == ("works", "its evidence was proved in a run")


def test_a_start_that_differs_by_one_lever_blames_it(bench: Bench) -> None:
    bench.put(PLAIN)
    bench.put(AWQ)
    bench.fail(replace(AWQ, name="kv", engine_args=(("kv_cache_dtype", "fp8"),)))
    row = bench.learned()["kv_cache_dtype=fp8"]
    assert row.outcome == "fails"
    assert row.says.startswith("its server did not start: no kernel; choose more; delete this row")


@pytest.mark.parametrize(
    ("change", "log"),
    [
        ({"engine_args": (("kv_cache_dtype", "fp8"), ("dtype", "float16"))}, NO_KERNEL),
        ({"engine_args": (("max_num_seqs", 8),)}, NO_KERNEL),
        ({"prefix_cache": True}, "torch.OutOfMemoryError: CUDA out of memory\n"),
        ({"prefix_cache": True}, None),
        ({"weights": "other"}, NO_KERNEL),
    ],
    ids=["two levers", "a number", "memory", "no log", "no lever"],
)
def test_starts_that_blame_nothing(bench: Bench, change: dict[str, Any], log: str | None) -> None:
    bench.put(PLAIN)
    bench.fail(replace(PLAIN, name="odd", **change), log)
    assert bench.learned() == {}


def test_a_lever_that_works_elsewhere_in_the_run_is_not_blamed(bench: Bench) -> None:
    bench.put(PLAIN)
    bench.put(replace(AWQ, prefix_cache=True), prefix_cache="proved")
    bench.fail(replace(PLAIN, name="cached", prefix_cache=True))
    assert bench.learned()["prefix_cache"].outcome == "works"


def test_a_run_of_another_machine_teaches_only_what_works(bench: Bench) -> None:
    other = replace(EPYC, kind="cuda", name="NVIDIA H100")
    write_json(bench.store.path("environment.json"), environment(other))
    bench.put(AWQ, weights="proved")
    bench.fail(replace(AWQ, name="cached", prefix_cache=True))
    assert {row.lever: row.machine for row in bench.learned().values()} == {
        "weights_scheme=W4A16": "cuda"
    }


def test_rows_go_to_ones_own_table_and_a_newer_run_replaces_them(bench: Bench) -> None:
    bench.put(PLAIN)
    bench.fail(replace(PLAIN, name="cached", prefix_cache=True))
    assert [row.outcome for row in learn_into_own(bench.store.root)] == ["fails"]
    bench.put(replace(PLAIN, name="cached", prefix_cache=True), prefix_cache="proved")
    learn_into_own(bench.store.root)
    assert [(row.lever, row.outcome) for row in own_rows()] == [("prefix_cache", "works")]


def test_a_run_without_its_environment(bench: Bench) -> None:
    bench.put(PLAIN)
    bench.store.path("environment.json").unlink()
    with pytest.raises(StorageError, match="missing or damaged"):
        bench.learned()
