"""Every reason to refuse a variant before it starts, each with its mend."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_hollow, write_json, write_tiny_llama
from tests.predict.builders import cpu, gpu
from tests.records import variant
from whet.checkpoint import read_facts
from whet.core.provenance import Device
from whet.core.records.engine import Speculation, Variant
from whet.core.records.plan import Problem
from whet.core.spec import RecipeSpec, Spec, parse_spec
from whet.core.units import GIB
from whet.predict.disk import disk_problems
from whet.predict.feasibility import Feasibility, assess_variants
from whet.quant import quantize

SPECULATION = Speculation(method="draft_model", num_tokens=4, draft_path="draft")


class Bench:
    """A target and a draft of one tokenizer, and what preflight says of a variant."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = write_tiny_llama(root / "target")
        self.draft = write_tiny_llama(root / "draft", seed=1, num_hidden_layers=1)
        self.device: Device = gpu()
        self.spec: dict[str, Any] = {
            "name": "t",
            "model": {"target": str(self.target), "draft": str(self.draft)},
            "hardware": {"price_usd_per_hour": 1.0},
            "load": {"concurrency": [1, 4]},
            "workload": {"max_input_tokens": 200, "max_output_tokens": 56},
        }

    def parsed(self) -> Spec:
        return parse_spec(self.spec, base=self.root)

    def variant(self, **changes: Any) -> Variant:
        return variant(**{"model_path": str(self.target), **changes})

    def assess(self, variant: Variant) -> Feasibility:
        return assess_variants(
            [variant],
            target=read_facts(self.target),
            draft=read_facts(self.draft),
            device=self.device,
            spec=self.parsed(),
        )

    def check(self, **changes: Any) -> tuple[Problem, ...]:
        assessed = self.assess(self.variant(**changes))
        return (*assessed.problems, *disk_problems(assessed.disks))

    def only(self, kind: str, **changes: Any) -> str:
        """The message of the one problem, which is of this kind."""
        (problem,) = self.check(**changes)
        assert (problem.variant, problem.kind) == ("v", kind)
        return problem.message


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def change(path: Path, name: str, **values: Any) -> None:
    file = path / name
    write_json(file, json.loads(file.read_text()) | values)


def test_nothing_against_a_pair_that_fits(bench: Bench) -> None:
    made = bench.variant(weights="awq", model_path=str(bench.root / "checkpoints" / "awq"))
    found = assess_variants(
        [bench.variant(), bench.variant(speculation=SPECULATION), made],
        target=read_facts(bench.target),
        draft=read_facts(bench.draft),
        device=gpu(),
        spec=bench.parsed(),
    )
    assert found.problems == ()


def test_a_draft_with_two_tokens_swapped(bench: Bench) -> None:
    data = json.loads((bench.draft / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    token = {index: token for token, index in vocab.items()}
    vocab |= {token[40]: 41, token[41]: 40}
    write_json(bench.draft / "tokenizer.json", data)
    said = bench.only("tokenizer", speculation=SPECULATION)
    assert f"the id of token {token[40]!r} is 40 in the target and 41 in the draft" in said
    assert said.endswith("choose a draft made for this target")


def test_a_permuted_draft_harms_only_those_that_speculate(bench: Bench) -> None:
    change(bench.draft, "tokenizer.json", normalizer={"type": "NFKC"})
    assert bench.check() == ()
    assert len(bench.check(speculation=SPECULATION)) == 1


def test_a_base_model_as_the_draft_may_end_text_otherwise(bench: Bench) -> None:
    change(bench.draft, "tokenizer_config.json", eos_token="<|start|>")
    assert bench.check(speculation=SPECULATION) == ()
    ngram = Speculation(method="ngram", num_tokens=4, draft_path=None)
    assert bench.check(speculation=ngram) == ()
    mapped = replace(SPECULATION, options=(("use_heterogeneous_vocab", True),))
    assert bench.check(speculation=mapped) == ()


def test_a_draft_vocabulary_off_by_one(bench: Bench) -> None:
    config = json.loads((bench.draft / "config.json").read_text()) | {"vocab_size": 301}
    write_hollow(bench.draft, config)
    said = bench.only("vocabulary", speculation=SPECULATION)
    assert said.startswith("the target's vocab_size is 300 and the draft's 301")


def test_a_missing_draft(bench: Bench) -> None:
    found = assess_variants(
        [bench.variant(speculation=SPECULATION)],
        target=read_facts(bench.target),
        draft=None,
        device=gpu(),
        spec=bench.parsed(),
    )
    assert [problem.message for problem in found.problems] == [
        "it speculates with a draft model; set model.draft"
    ]


def test_a_variant_that_cannot_fit(bench: Bench) -> None:
    bench.device = gpu(1)
    assert "leave no room for a KV cache" in bench.only("memory")


def test_a_server_elsewhere_has_memory_of_its_own(bench: Bench) -> None:
    bench.device = gpu(1)
    bench.spec["engine"] = {"name": "openai", "url": "http://127.0.0.1:8000"}
    assert bench.check() == ()


def test_a_length_beyond_the_model(bench: Bench) -> None:
    said = bench.only("length", engine_args=(("max_model_len", 1024),))
    assert said == "max_model_len 1024 is beyond the model's 512; set it to at most 512"


def test_a_length_below_the_long_prompts(bench: Bench) -> None:
    bench.spec["workload"] |= {"long_prompts": 0.1, "long_prompt_tokens": 400}
    said = bench.only("length", engine_args=(("max_model_len", 400),))
    assert "shorter than the workload's longest request" in said


def test_a_length_below_the_workload(bench: Bench) -> None:
    said = bench.only("length", engine_args=(("max_model_len", 255),))
    assert "shorter than the workload's longest request of 256 tokens" in said
    assert bench.check(engine_args=(("max_model_len", 256),)) == ()


def test_a_draft_that_reads_less_than_the_workload(bench: Bench) -> None:
    change(bench.draft, "config.json", max_position_embeddings=128)
    assert "the draft reads 128 tokens" in bench.only("length", speculation=SPECULATION)


def test_another_model_in_16_bits_is_compared_with_the_target(bench: Bench) -> None:
    """A smaller model may serve in the target's place; its answers decide."""
    other = write_tiny_llama(bench.root / "other", num_hidden_layers=1)
    weights = {"weights": str(other), "model_path": str(other)}
    assert bench.check(**weights) == ()
    plain, small = (
        bench.assess(each).memory["v"] for each in (bench.variant(), bench.variant(**weights))
    )
    assert plain.kv_bytes_per_token == 2 * small.kv_bytes_per_token
    change(other, "generation_config.json", eos_token_id=[1, 0])
    assert "in the target and [0, 1] in the other checkpoint" in bench.only("tokenizer", **weights)


def test_quantized_weights_of_another_shape(bench: Bench) -> None:
    other = write_tiny_llama(bench.root / "other", num_hidden_layers=1)
    made = bench.root / "made"
    recipe = RecipeSpec.model_validate({"scheme": "FP8_DYNAMIC"})
    text = bench.root / "unused.jsonl"
    text.write_text('{"text": "not read by round to nearest"}')
    quantize(other, made, recipe, calibration=text)
    said = bench.only("shape", weights=str(made), model_path=str(made))
    assert said.startswith("layers is 2 in the target and 1 in the made checkpoint; give ")


def test_more_devices_than_there_are(bench: Bench) -> None:
    said = bench.only("device", engine_args=(("tensor_parallel_size", 2),))
    assert said.endswith("set it to 1")


def test_heads_that_the_devices_cannot_share(bench: Bench) -> None:
    """vLLM ends with the same reason after its imports."""
    bench.device = replace(bench.device, count=8)
    heads = read_facts(bench.target).heads
    (problem,) = bench.check(engine_args=(("tensor_parallel_size", 3),))
    assert problem.kind == "settings"
    assert f"tensor_parallel_size 3 does not divide the {heads} attention heads" in problem.message
    assert bench.check(engine_args=(("tensor_parallel_size", 2),)) == ()


def test_made_weights_are_read_and_compared(bench: Bench) -> None:
    made = bench.root / "made"
    shutil.copytree(bench.target, made)
    change(made, "generation_config.json", eos_token_id=[1, 0])
    said = bench.only("tokenizer", weights="awq", model_path=str(made))
    assert "ends with the ids [1] in the target and [0, 1] in the awq checkpoint" in said
    (made / "model.safetensors").write_bytes(b"")
    assert "not a whole safetensors file" in bench.only(
        "weights", weights="awq", model_path=str(made)
    )


def test_a_full_disk_is_told_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(10 * GIB, 10 * GIB, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    path = str(bench.root / "checkpoints" / "awq")
    (problem,) = bench.check(weights="awq", model_path=path)
    assert (problem.variant, problem.kind) == (None, "disk")
    assert bench.check() == ()


def test_on_a_cpu_the_free_memory_is_asked(bench: Bench) -> None:
    bench.device = cpu()
    space = (("VLLM_CPU_KVCACHE_SPACE", "100000"),)
    assert "set VLLM_CPU_KVCACHE_SPACE to at most" in bench.only("memory", env=space)


def test_a_variant_may_name_a_draft_of_its_own(bench: Bench) -> None:
    other = write_tiny_llama(bench.root / "other", seed=2, num_hidden_layers=1)
    own = replace(SPECULATION, draft_path=str(other))
    assert bench.check(speculation=own) == ()
    change(other, "tokenizer.json", normalizer={"type": "NFKC"})
    assert "the draft's tokenizer is not" in bench.only("tokenizer", speculation=own)
    assert bench.check(speculation=SPECULATION) == (), "the spec's own draft is another"
    (other / "model.safetensors").write_bytes(b"")
    assert "not a whole safetensors file" in bench.only("weights", speculation=own)


def test_a_recipe_that_is_not_made_yet_drafts_with_the_targets_tokenizer(bench: Bench) -> None:
    change(bench.draft, "tokenizer.json", normalizer={"type": "NFKC"})
    own = replace(SPECULATION, draft_path=str(bench.root / "checkpoints" / "awq"))
    assert bench.check(speculation=own) == ()


def test_a_draft_that_must_be_written_needs_room_on_the_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(10 * GIB, 10 * GIB, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    own = replace(SPECULATION, draft_path=str(bench.root / "checkpoints" / "awq"))
    (problem,) = bench.check(speculation=own)
    assert (problem.variant, problem.kind) == (None, "disk")
