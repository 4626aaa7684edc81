"""Whom a variant is held to in the gate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import records
from whet.core.records.engine import ResolvedEngine, Speculation
from whet.core.records.evidence import EngineFacts
from whet.core.records.quality import QualityRecord
from whet.core.spec import SearchSpec
from whet.core.store import RunStore
from whet.data import write_inputs
from whet.flow.run.measure.quality import KIND, PLAIN, _checks, _scoring_defect, weights_key
from whet.flow.run.plan import Plan
from whet.quality import PlainReference
from whet.quality.continuations import Continuations, Samples, Sampling
from whet.quality.data import load_documents

DRAFT = Speculation(method="draft_model", num_tokens=3, draft_path="/draft")

SHOWN = SimpleNamespace(is_private=False, search=None)


def resolved(
    name: str,
    *,
    path: str = "/target",
    scheme: str = "16bit",
    speculation: Speculation | None = None,
    env: tuple[tuple[str, str], ...] = (),
    **args: Any,
) -> ResolvedEngine:
    variant = records.variant(
        name=name, scheme=scheme, model_path=path, speculation=speculation,
        engine_args=tuple(args.items()), env=env,
    )  # fmt: skip
    return records.resolved(variant, env=(("SET_BY_THE_ENGINE", name), *env))


def record(name: str, twin: str | None) -> QualityRecord:
    return records.quality(variant=name, twin=twin)


def plain() -> PlainReference:
    told = Continuations(prompts_sha256="x", max_tokens=1, answered=(), missing=None)
    samples = Samples(sampling=Sampling(), answered={}, missing=None)
    return PlainReference(first=told, again=told, samples=samples)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.open(tmp_path / "run") as opened:
        yield opened


def checks_of(
    store: RunStore, every: tuple[ResolvedEngine, ...], name: str, spec: Any = SHOWN
) -> Any:
    plan = cast(Plan, SimpleNamespace(resolved=every, spec=spec))
    return _checks(plan, store, next(each for each in every if each.variant.name == name))


def test_speculation_is_held_to_the_plain_server_of_the_same_weights(store: RunStore) -> None:
    every = (
        resolved("fp16"),
        resolved("awq", path="/awq"),
        resolved("awq+spec", path="/awq", speculation=DRAFT),
    )
    assert [checks_of(store, every, each).is_plain for each in ("fp16", "awq")] == [False, True]
    store.put(PLAIN, "awq", plain())
    store.put(KIND, "awq", record("awq", "awq"))
    held = checks_of(store, every, "awq+spec")
    assert (held.same_weights_reference.variant, held.plain, held.is_plain) == (
        "awq",
        plain(),
        False,
    )
    assert checks_of(store, every, "fp16").same_weights_reference is None


def test_probes_of_a_private_log_hold_built_in_text_and_can_be_deployed(
    store: RunStore, tmp_path: Path
) -> None:
    private = SimpleNamespace(is_private=True, search=None)
    hidden, shown = (checks_of(store, (resolved("a"),), "a", spec) for spec in (private, SHOWN))
    assert hidden.golden == shown.golden == store.path("golden")
    assert shown.golden_text is None
    write_inputs(tmp_path)
    files = (hidden.golden_text, tmp_path / "heldout.jsonl")
    probed, built_in = ([each.messages for each in load_documents(x, 10**6)] for x in files)
    assert probed == built_in


def test_a_search_asks_the_plain_server_before_any_variant_speculates(store: RunStore) -> None:
    every = (resolved("default"), resolved("more"), resolved("awq", path="/awq"))
    spec = SimpleNamespace(is_private=False, search=SearchSpec())
    asked = [checks_of(store, every, each.variant.name, spec).is_plain for each in every]
    assert asked == [True, False, True], "the first of each weights"


def test_the_first_that_was_measured_is_the_twin(store: RunStore) -> None:
    every = (resolved("fp16"), resolved("cache"), resolved("more"))
    store.put(KIND, "cache", record("cache", "fp16"))
    store.put(KIND, "fp16", record("fp16", "fp16"))
    assert checks_of(store, every, "more").same_weights_reference.variant == "fp16"


def test_what_changes_the_numbers_makes_other_weights() -> None:
    one = weights_key(resolved("a", max_num_seqs=1))
    assert weights_key(resolved("b", max_num_seqs=8)) == one
    assert weights_key(resolved("c", kv_cache_dtype="fp8")) != one
    assert weights_key(resolved("d", path="/other")) != one


MARLIN = (("VLLM_TEST_FORCE_FP8_MARLIN", "1"),)
OPS = {"compilation_config": '{"custom_ops":["+quant_fp8"]}'}
GRAPHS = {"compilation_config": '{"cudagraph_mode":"FULL"}'}


EAGER = {"enforce_eager": True}


@pytest.mark.parametrize(
    ("one", "two", "otherwise"),
    [
        ({}, {"max_num_seqs": 8}, True),  # each is compiled anew, and may keep other kernels
        (EAGER, {**EAGER, "max_num_seqs": 8}, False),
        (EAGER, {**EAGER, **GRAPHS}, False),
        (EAGER, {}, True),
        (EAGER, {**EAGER, "env": MARLIN}, True),
        (EAGER, {**EAGER, **OPS}, True),
    ],
)
def test_servers_may_run_on_other_kernels_unless_both_are_eager_and_none_is_asked_for(
    store: RunStore, one: dict[str, Any], two: dict[str, Any], otherwise: bool
) -> None:
    every = (resolved("one", **one), resolved("two", **two))
    store.put(KIND, "one", record("one", "one"))
    assert checks_of(store, every, "two").other_kernels is otherwise


def test_what_is_known_of_the_engine_is_asked_of_its_own_words(store: RunStore) -> None:
    spec = resolved("spec", speculation=DRAFT)
    assert _scoring_defect(store, spec) is None, "nothing is known of a server that said nothing"
    facts = EngineFacts(
        version="0.26.0", weight_kernels=(), quantized_layers=None, unquantized_layers=None,
        attention_backend=None, kv_cache_tokens=None, prefix_cache_enabled=None,
        async_scheduling=None, notices=(), graphs_captured=True,
    )  # fmt: skip
    store.put("facts", "spec", facts)
    assert "53488" in (_scoring_defect(store, spec) or "")


@pytest.mark.parametrize(
    ("scheme", "rounds"), [("FP8", True), ("W8A8-INT8", True), ("W4A16", False)]
)
def test_schemes_that_round_activations(store: RunStore, scheme: str, rounds: bool) -> None:
    assert checks_of(store, (resolved("one", scheme=scheme),), "one").rounds is rounds
