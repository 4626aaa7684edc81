"""The situation of a search: what the model, the card and the log let the playbook try."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.test_heads import write_head
from tests.checkpoint_factory import (
    in_fp8,
    llama_shapes,
    tiny_config,
    write_hollow,
    write_hollow_file,
    write_json,
    write_tiny_llama,
    write_tokenizer,
)
from tests.cli.test_check_device import SEVEN_B
from tests.cli.test_init_from_log import write_log
from tests.flow.stage import FakeEngine, install, recorder, tiny_spec
from tests.model_hub import Model, ModelHub, model_hub
from whet.core.errors import CheckpointError, UsageError
from whet.core.spec import EngineSpec, parse_spec
from whet.core.store import RunStore
from whet.engines.vllm import VllmEngine
from whet.flow.run.check.check import plan_machine, prepare
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.check.facts import find_facts
from whet.flow.run.check.resolve import resolve
from whet.flow.run.check.situation import find_situation, prepare_search
from whet.flow.run.situation import Head, Situation

BASE = "meta-llama/Llama-3.1-8B-Instruct"
LISTED = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    with model_hub(monkeypatch, tmp_path / "cache") as running:
        yield running


def look(
    folder: Path, checkpoints: Checkpoints | None = None, *, card: str = "H100 SXM", **change: Any
) -> Situation:
    data = {
        "name": "m",
        "model": {"target": "./target"},
        "hardware": {"price_usd_per_hour": 1.0},
        "load": {"concurrency": [1, 64]},
        "search": {},
        **change,
    }
    planned = plan_machine(card, "0.33.0", EngineSpec())
    (folder / "scratch").mkdir(exist_ok=True)
    checkpoints = checkpoints or Checkpoints(folder / "scratch", {})
    facts = find_facts(parse_spec(data, base=folder), folder / "run", checkpoints)
    engine = VllmEngine(planned=planned)
    resolved = resolve(facts, folder / "run", lambda _name: engine, planned.device)
    return find_situation(facts, resolved.variants, planned.device, checkpoints, planned)


def seven_b(folder: Path, **change: Any) -> Path:
    return write_hollow(folder, tiny_config(write_tokenizer(folder)) | SEVEN_B | change)


def test_model_card_and_engine_are_those_that_are_planned(tmp_path: Path) -> None:
    seven_b(tmp_path / "target")
    seen = look(tmp_path)
    assert (seen.capability, seen.version, seen.engine) == ((9, 0), (0, 33, 0), "vllm")
    assert (seen.in_flight, seen.draft, seen.nvcc, seen.unmeasured_card) == (64, False, True, False)
    assert look(tmp_path, card="B200").unmeasured_card
    assert seen.traffic.copied is None
    assert seen.traffic.greedy == 1
    assert 0 < seen.traffic.hit_rate < 1


@pytest.mark.parametrize(
    ("change", "names", "four_bits"),
    [
        ({}, ["int4", "fp8", "fp8-kv", "int8", "w4a8"], "auto W4A16 g128"),
        ({"intermediate_size": 10944}, ["int4", "fp8", "fp8-kv", "int8"], "auto W4A16 g64"),
        ({"model_type": "nobodys"}, ["int4", "fp8"], "rtn W4A16 g128"),
        ({"intermediate_size": 10952}, ["fp8", "fp8-kv", "int8"], None),
    ],
    ids=["usual", "smaller groups", "round to nearest", "no groups"],
)
def test_the_recipes_are_those_that_can_be_made(
    tmp_path: Path, change: dict[str, Any], names: list[str], four_bits: str | None
) -> None:
    seven_b(tmp_path / "target", **change)
    recipes = look(tmp_path).recipes
    assert list(recipes) == names
    titles = {each.title for name, each in recipes.items() if name == "int4"}
    assert titles == ({four_bits} if four_bits else set())


def test_a_quantized_model_has_no_recipes(tmp_path: Path) -> None:
    in_fp8(tmp_path / "target")
    assert look(tmp_path).recipes == {}


def test_a_recipe_of_the_spec_stands_before_the_usual_one(tmp_path: Path) -> None:
    seven_b(tmp_path / "target")
    own = {"method": "gptq", "scheme": "W4A16", "group_size": 64}
    recipes = look(tmp_path, recipes={"int4": own}).recipes
    assert (recipes["int4"].title, recipes["fp8"].title) == ("gptq W4A16 g64", "rtn FP8_DYNAMIC")


def test_the_log_says_what_traffic_is_like(tmp_path: Path) -> None:
    seven_b(tmp_path / "target")
    answer = {"choices": [{"message": {"role": "assistant", "content": "the order that I paid"}}]}
    log = write_log(tmp_path / "log.jsonl", 400, response=answer)
    seen = look(tmp_path, traffic={"log": str(log)})
    assert seen.traffic.copied == pytest.approx(1, abs=0.4)
    assert seen.traffic.prompt_tokens > seen.traffic.answer_tokens > 0
    assert seen.traffic.longest >= seen.traffic.prompt_tokens
    calibration = {each.calibration.samples for each in seen.recipes.values()}
    assert len(calibration) == 1
    assert 32 <= calibration.pop() < 200


def only(heads: tuple[Head, ...]) -> Head:
    assert len(heads) == 1, heads
    return heads[0]


def test_a_head_that_the_user_names_is_checked_and_kept(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "target")
    write_head(tmp_path / "head")
    head = only(look(tmp_path, search={"heads": ["./head"]}).heads)
    assert (head.ref, head.method) == (str(tmp_path / "head"), "eagle3")
    assert (head.source, head.problem) == ("search.heads", None)


def test_a_named_head_of_another_model_is_refused(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "target")
    write_head(tmp_path / "wide", hidden_size=256)
    other = write_tokenizer_of_another_model(write_head(tmp_path / "foreign"))
    with pytest.raises(UsageError, match=r"search\.heads: .*hidden states of 256.*trained for"):
        look(tmp_path, search={"heads": ["./wide"]})
    with pytest.raises(UsageError, match=r"search\.heads: .*its tokenizer is not the target's"):
        look(tmp_path, search={"heads": [str(other)]})
    with pytest.raises(CheckpointError, match=r"search\.heads: no checkpoint folder at"):
        look(tmp_path, search={"heads": ["./nowhere"]})


def write_tokenizer_of_another_model(folder: Path) -> Path:
    write_tokenizer(folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"][0]["content"] = "<|begin|>"
    write_json(folder / "tokenizer.json", data)
    return folder


def test_layers_that_the_model_brings_are_a_head(tmp_path: Path) -> None:
    config = tiny_config(write_tokenizer(tmp_path / "target")) | SEVEN_B
    folder = write_hollow(tmp_path / "target", config)
    tensors = {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    tensors["mtp.layers.0.self_attn.q_proj.weight"] = ("BF16", (4096, 4096))
    write_hollow_file(folder / "model.safetensors", tensors)
    head = only(look(tmp_path).heads)
    assert (head.ref, head.method, head.num_tokens) == ("", "mtp", None)


def test_published_heads_that_fit_are_fetched_by_their_headers(
    tmp_path: Path, hub: ModelHub
) -> None:
    hub.models[BASE] = Model(write_tiny_llama(tmp_path / "hub" / "base"))
    hub.models[LISTED] = Model(write_head(tmp_path / "hub" / "head"))
    hub.models["z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"] = Model(
        write_head(tmp_path / "hub" / "flash", architectures=["DFlashDraftModel"], hidden_size=512)
    )
    (tmp_path / "scratch").mkdir()
    checkpoints = Checkpoints(tmp_path / "scratch", {})
    heads = {head.ref: head for head in look(tmp_path, checkpoints, model={"target": BASE}).heads}
    assert (heads[LISTED].problem, heads[LISTED].num_tokens) == (None, 3)
    assert f"listed for {BASE}" in heads[LISTED].source
    flash = heads["z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"].problem or ""
    assert "hidden states of 512" in flash
    other = heads["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"].problem or ""
    assert "name this one in search.heads" in other
    assert "yuhuili/EAGLE-LLaMA3.1-Instruct-8B" in (
        heads["yuhuili/EAGLE-LLaMA3.1-Instruct-8B"].problem or ""
    )
    missing = {each.snapshot.hub_id for each in checkpoints.missing.values()}
    assert missing == {BASE, LISTED}


def test_a_model_made_of_a_listed_one_has_its_heads_where_they_fit(
    tmp_path: Path, hub: ModelHub
) -> None:
    write_tiny_llama(tmp_path / "target", _name_or_path=BASE)
    hub.models[LISTED] = Model(write_head(tmp_path / "hub" / "head"))
    heads = {head.ref: head for head in look(tmp_path).heads}
    assert heads[LISTED].problem is None
    assert f"trained for {BASE}" in heads[LISTED].source


def test_without_a_hub_listed_heads_are_left_out(tmp_path: Path, hub: ModelHub) -> None:
    write_tiny_llama(tmp_path / "target", _name_or_path=BASE)
    hub.status = 503
    heads = look(tmp_path).heads
    assert heads
    assert all(head.problem for head in heads)


def test_named_checkpoints_are_quantized_weights_of_the_target(tmp_path: Path) -> None:
    write_hollow(tmp_path / "target", tiny_config(write_tokenizer(tmp_path / "target")))
    in_fp8(tmp_path / "fp8")
    seen = look(tmp_path, search={"checkpoints": ["./fp8"]}).checkpoints
    assert [(each.ref, each.scheme) for each in seen] == [(str(tmp_path / "fp8"), "FP8_BLOCK")]
    write_tiny_llama(tmp_path / "plain")
    seven_b(tmp_path / "large")
    with pytest.raises(UsageError, match=r"search\.checkpoints: .*is not quantized"):
        look(tmp_path, search={"checkpoints": ["./plain"]})
    with pytest.raises(UsageError, match="layers is 2 in the target and 32 in the checkpoint"):
        look(tmp_path, search={"checkpoints": ["./large"]})


def test_heads_that_fit_are_downloaded_before_the_search(
    tmp_path: Path, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models["owner/head"] = Model(write_head(tmp_path / "hub" / "named"))
    hub.models[LISTED] = Model(write_head(tmp_path / "hub" / "listed", hidden_size=64))
    engine = FakeEngine()
    install(engine, monkeypatch)
    spec = tiny_spec(tmp_path, search={"heads": ["owner/head"]}, load={"concurrency": [1]})
    write_tiny_llama(tmp_path / "target", _name_or_path=BASE)
    with RunStore.open(tmp_path / "run") as store:
        plan = prepare(spec, recorder(store), engine, skip_infeasible=False)
        assert hub.sent["model.safetensors"] == 0
        facts, situation = prepare_search(plan, recorder(store))
    by_ref = {head.ref: head.problem for head in situation.heads}
    assert by_ref["owner/head"] is None
    assert "hidden states of 64" in (by_ref[LISTED] or "")
    weights = facts.folders["owner/head"] / "model.safetensors"
    assert (
        weights.stat().st_size == (tmp_path / "hub" / "named" / "model.safetensors").stat().st_size
    )
    assert LISTED not in facts.folders
    assert "rtn" in situation.recipes
