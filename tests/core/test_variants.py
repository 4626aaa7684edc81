"""Variants as written: sweeps, presets, drafts, adapters, batches, the long-prompt test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core.errors import UsageError
from whet.core.records.codec import decode
from whet.core.spec import (
    NEEDS_HEAD,
    Spec,
    SpeculationSpec,
    VariantSpec,
    parse_spec,
)
from whet.core.spec.recipe import SCHEMES
from whet.core.spec.variants import expand_sweeps

MINIMAL: dict[str, Any] = {
    "name": "m",
    "model": {"target": "org/target"},
    "hardware": {"price_usd_per_hour": 1.0},
}


def spec(base: Path = Path("/base"), **change: Any) -> Spec:
    return parse_spec({**MINIMAL, **change}, base=base)


def variant(words: dict[str, Any], base: Path = Path("/base")) -> VariantSpec:
    return spec(base, variants={"fp16": {}, "v": words}).variants["v"]


def told(words: dict[str, Any], **change: Any) -> str:
    with pytest.raises(UsageError) as caught:
        spec(variants={"fp16": {}, "v": words}, **change)
    return str(caught.value)


def test_a_list_among_the_flags_is_one_variant_a_value() -> None:
    found = expand_sweeps({"a": {"args": {"max_num_seqs": [8, 32], "seed": 1}}, "b": {}})
    assert found == {
        "a.max_num_seqs8": {"args": {"max_num_seqs": 8, "seed": 1}},
        "a.max_num_seqs32": {"args": {"max_num_seqs": 32, "seed": 1}},
        "b": {},
    }


def test_two_lists_are_every_combination_k_first() -> None:
    words = {"speculation": {"method": "ngram", "num_tokens": [2, 4]}, "args": {"seed": [0, 1]}}
    found = expand_sweeps({"s": words})
    assert list(found) == ["s.k2.seed0", "s.k2.seed1", "s.k4.seed0", "s.k4.seed1"]
    assert found["s.k4.seed1"] == {
        "speculation": {"method": "ngram", "num_tokens": 4},
        "args": {"seed": 1},
    }


def test_what_was_written_is_left_as_it_was() -> None:
    words = {"a": {"args": {"seed": [0, 1]}}}
    expand_sweeps(words)
    assert words == {"a": {"args": {"seed": [0, 1]}}}


@pytest.mark.parametrize("item", [None, [1], "awq", {"args": None}, {"args": [1]}])
def test_what_is_no_variant_is_left_to_the_check(item: object) -> None:
    assert expand_sweeps({"a": item}) == {"a": item}


@pytest.mark.parametrize(
    "variants",
    [
        {"a": {"args": {"seed": [1, 1]}}},
        {"a": {"args": {"seed": [1, 2]}}, "a.seed1": {}},
        {"a.seed1": {}, "a": {"args": {"seed": [1, 2]}}},
    ],
    ids=["twice in the list", "written after", "written before"],
)
def test_a_name_that_comes_twice_is_refused(variants: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"two variants are called 'a\.seed1'"):
        spec(variants={"fp16": {}, **variants})


def test_a_sweep_is_made_before_the_check() -> None:
    found = spec(
        variants={"fp16": {}, "s": {"speculation": {"method": "ngram", "num_tokens": [2, 6]}}}
    ).variants
    assert list(found) == ["fp16", "s.k2", "s.k6"]
    counts = [item.speculation.num_tokens for item in found.values() if item.speculation]
    assert counts == [2, 6]


def test_a_baseline_that_is_swept_is_told_what_its_lists_make() -> None:
    with pytest.raises(UsageError) as caught:
        spec(variants={"fp16": {"args": {"max_num_seqs": [8, 32]}}})
    assert str(caught.value) == (
        "baseline 'fp16' is not among the variants; its lists make fp16.max_num_seqs8, "
        "fp16.max_num_seqs32: set baseline to one of them"
    )
    swept = {"fp16": {"args": {"max_num_seqs": [8, 32]}}}
    found = spec(variants=swept, baseline="fp16.max_num_seqs8")
    assert found.variants[found.baseline].args == {"max_num_seqs": 8}


@pytest.mark.parametrize("value", [[], None, {"a": 1}, [[1]]])
def test_a_flag_without_a_plain_value_is_told_once(value: object) -> None:
    message = told({"args": {"max_num_seqs": value}})
    assert "a text, a number, true or false is needed" in message
    assert ";" not in message


def test_a_name_that_is_no_text_is_told() -> None:
    with pytest.raises(UsageError, match="must be a text"):
        spec(variants={"fp16": {}, 16: {}})


@pytest.mark.parametrize("name", ["interactivity", "throughput"])
def test_a_mode_is_known_and_another_is_told_with_the_known_ones(name: str) -> None:
    assert variant({"performance_mode": name}).lever_values == {"performance_mode": name}
    assert repr(name) in told({"performance_mode": f"{name}y"})


@pytest.mark.parametrize("method", NEEDS_HEAD)
def test_a_method_with_a_head_needs_one(method: str) -> None:
    assert "needs a head trained for the target; set draft" in told(
        {"speculation": {"method": method}}
    )
    found = variant({"speculation": {"method": method, "draft": "org/head"}})
    assert found.speculation == SpeculationSpec(method=method, draft="org/head")


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix"])
def test_a_method_without_a_model_takes_none(method: str) -> None:
    assert variant({"speculation": {"method": method}}).speculation is not None
    assert "leave draft out" in told({"speculation": {"method": method, "draft": "org/d"}})


def test_a_draft_of_its_own_needs_no_draft_of_the_model() -> None:
    assert told({"speculation": {}}) == (
        "variant 'v' speculates with a draft model; set model.draft"
    )
    assert variant({"speculation": {"draft": "org/d"}}).speculation is not None


def test_a_recipe_as_a_draft_keeps_its_name_whatever_lies_beside_the_spec(tmp_path: Path) -> None:
    (tmp_path / "awq").mkdir()
    found = variant({"speculation": {"draft": "awq"}}, tmp_path).speculation
    assert found is not None
    assert found.draft == "awq"


@pytest.mark.parametrize(
    ("written", "read"),
    [("./d", "{base}/d"), ("d", "{base}/d"), ("org/d", "org/d"), ("/abs/d", "/abs/d")],
    ids=["relative", "a folder there", "hub id", "absolute"],
)
def test_drafts_and_adapters_count_from_the_specs_folder(
    tmp_path: Path, written: str, read: str
) -> None:
    (tmp_path / "d").mkdir()
    words = {"speculation": {"draft": written}, "loras": {"one": written}}
    found = variant(words, tmp_path)
    assert found.speculation is not None
    assert found.speculation.draft == read.format(base=tmp_path)
    assert found.loras == {"one": read.format(base=tmp_path)}


def test_adapters_and_how_many_fit() -> None:
    found = variant({"loras": {"one": "/a", "two": "/b"}, "max_loras": 1})
    assert (list(found.loras), found.max_loras) == (["one", "two"], 1)
    assert "max_loras needs loras" in told({"max_loras": 2})
    assert "variants.v.max_loras" in told({"loras": {"one": "/a"}, "max_loras": 0})


@pytest.mark.parametrize("name", ["a,b", "a=b", "a b", ""])
def test_an_adapters_name_that_the_command_would_tear_is_refused(name: str) -> None:
    assert "the adapter" in told({"loras": {name: "/a"}})


def test_batches_are_continuous_or_static() -> None:
    assert variant({}).batching == "continuous"
    assert variant({"batching": "static"}).batching == "static"
    assert "'continuous' or 'static'" in told({"batching": "naive"})


def test_an_unknown_key_inside_a_sweep_is_named_with_its_neighbour() -> None:
    message = told({"speculation": {"methd": "ngram", "num_tokens": [2]}})
    assert message == ("unknown key 'methd' in variants.v.k2.speculation; did you mean 'method'?")


def test_the_removed_head_of_line_test_names_its_successor() -> None:
    assert "set workload.long_prompts" in told({}, load={"head_of_line": {"long_tokens": 8192}})


def test_the_lines_of_the_page_on_variants_are_a_spec() -> None:
    """The YAML of docs/story.md; its sweeps make two variants each."""
    page = Path(__file__).parents[2] / "docs" / "story.md"
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "long_prompts" in block)
    found = spec(**yaml.safe_load(block))
    assert {"seqs.max_num_seqs32", "seqs.max_num_seqs128", "k.k2", "k.k4"} < set(found.variants)
    assert (found.workload.long_prompts, found.workload.long_prompt_tokens) == (0.05, 8192)


def test_the_preset_of_schemes_has_one_variant_per_recipe() -> None:
    made = spec(preset="schemes")
    assert list(made.variants) == ["fp16", *SCHEMES]
    assert set(made.recipes) == set(SCHEMES)
    assert made.variants["fp16"] == VariantSpec()
    for name in SCHEMES:
        assert made.variants[name] == VariantSpec(weights=name)
    assert made.recipes["fp8-kv8"].kv_cache == "fp8"


def test_own_variants_and_recipes_stand_next_to_the_preset() -> None:
    made = spec(
        preset="schemes",
        recipes={"w8a8": {"scheme": "W8A8", "method": "rtn"}, "mine": {"group_size": 64}},
        variants={"mine": {"weights": "mine"}, "seqs": {"args": {"max_num_seqs": [8, 32]}}},
    )
    assert list(made.variants) == [
        "fp16",
        *SCHEMES,
        "mine",
        "seqs.max_num_seqs8",
        "seqs.max_num_seqs32",
    ]
    assert (made.recipes["w8a8"].method, made.recipes["mine"].group_size) == ("rtn", 64)


def test_the_preset_is_stored_as_its_variants() -> None:
    made = spec(preset="schemes")
    stored = made.model_dump(mode="json")
    assert stored["preset"] is None
    assert decode(Spec, stored) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"preset": "shemes"}, "preset: must be 'schemes' (got 'shemes')"),
        ({"preset": "schemes", "variants": ["fp16"]}, "variants: must be keys with their values"),
        ({"preset": "schemes", "recipes": 4}, "recipes: must be keys with their values"),
        ({"preset": "schemes", "baseline": "16bit"}, "baseline '16bit' is not among the variants"),
    ],
)
def test_a_preset_that_is_wrong(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec(**change)
    assert said in str(caught.value)
