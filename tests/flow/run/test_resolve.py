"""What a variant of the spec becomes: flags in order, drafts, adapters, levers of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_adapter, write_tiny_llama
from tests.flow.stage import FakeEngine, tiny_spec
from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError
from whet.core.provenance import find_device
from whet.core.records.engine import Speculation, Variant
from whet.core.records.model import ModelFacts
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.check.facts import find_facts
from whet.flow.run.check.resolve import resolve


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> ModelFacts:
    return read_facts(write_tiny_llama(tmp_path_factory.mktemp("draft")))


def variant(
    folder: Path, words: dict[str, Any], *, draft: ModelFacts | None = None, **change: Any
) -> Variant:
    """The variant ``v`` of a tiny spec, as the engine is told of it."""
    if draft is not None:
        change["model"] = {"target": str(folder / "target"), "draft": draft.path}
    spec = tiny_spec(folder, variants={"fp16": {}, "v": words}, **change)
    facts = find_facts(spec, folder / "run", Checkpoints(folder, {}))
    return resolve(facts, folder / "run", FakeEngine(), find_device()).variants[1].variant


def adapter(folder: Path, rank: int) -> str:
    return str(write_adapter(folder, r=rank))


def test_the_variants_flags_win_over_its_lever_keys_and_those_over_the_engines(
    tmp_path: Path,
) -> None:
    engine = {
        "name": "fake",
        "args": {"performance_mode": "balanced", "max_num_seqs": 1, "seed": 7},
    }
    keys = {"performance_mode": "throughput", "args": {"max_num_seqs": 64}}
    found = variant(tmp_path, keys, engine=engine)
    assert dict(found.engine_args) == {
        "seed": 7,
        "performance_mode": "throughput",
        "max_num_seqs": 64,
    }
    assert len(found.engine_args) == 3


def test_its_own_flags_are_those_of_its_keys_and_of_args(tmp_path: Path) -> None:
    found = variant(tmp_path, {"performance_mode": "throughput", "args": {"seed": 1}})
    assert set(found.own_args) == {"performance_mode", "seed"}
    assert variant(tmp_path / "plain", {}).own_args == ()


def test_a_recipes_kv_cache_type_may_be_set_otherwise(tmp_path: Path) -> None:
    recipes = {"r": {"scheme": "W4A16", "kv_cache": "fp8"}}
    plain = variant(tmp_path, {"weights": "r"}, recipes=recipes)
    assert dict(plain.engine_args)["kv_cache_dtype"] == "fp8"
    words = {"weights": "r", "args": {"kv_cache_dtype": "auto"}}
    other = variant(tmp_path / "other", words, recipes=recipes)
    assert dict(other.engine_args)["kv_cache_dtype"] == "auto"


def test_a_recipe_as_a_draft_is_its_checkpoint_in_the_run(tmp_path: Path) -> None:
    words = {"speculation": {"draft": "rtn", "num_tokens": 2, "options": {"a": 1}}}
    assert variant(tmp_path, words).speculation == Speculation(
        method="draft_model",
        num_tokens=2,
        draft_path=str((tmp_path / "run" / "checkpoints" / "rtn").resolve()),
        options=(("a", 1),),
    )


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ({}, "spec"),
        ({"draft": "own"}, "own"),
        ({"method": "eagle", "draft": "own"}, "own"),
        ({"method": "ngram"}, None),
        ({"method": "mtp"}, None),
    ],
    ids=["the spec's draft", "a draft of its own", "a head", "n-grams", "the target's own layers"],
)
def test_who_drafts(
    tmp_path: Path, draft: ModelFacts, words: dict[str, Any], path: str | None
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    found = variant(tmp_path, {"speculation": words}, draft=draft).speculation
    assert found is not None
    assert found.draft_path == {"spec": draft.path, "own": str(own.resolve()), None: None}[path]


def test_adapters_are_told_with_their_largest_rank_and_all_fit_unless_said(tmp_path: Path) -> None:
    loras = {"one": adapter(tmp_path / "a", 8), "two": adapter(tmp_path / "b", 32)}
    found = variant(tmp_path, {"loras": loras})
    assert found.loras == (("one", loras["one"]), ("two", loras["two"]))
    assert (found.max_loras, found.lora_rank) == (2, 32)
    cold = variant(tmp_path / "cold", {"loras": loras, "max_loras": 1})
    assert cold.max_loras == 1


def test_a_variant_without_adapters_has_no_figures_of_them(tmp_path: Path) -> None:
    found = variant(tmp_path, {"batching": "static"})
    assert (found.loras, found.max_loras, found.lora_rank) == ((), None, None)
    assert found.batching == "static"


def test_a_folder_that_holds_no_adapter_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="save_pretrained"):
        variant(tmp_path, {"loras": {"one": "./empty"}})
