"""``method: auto``: both methods from one pass, and the nearer one on documents of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.checkpoint_factory import write_tiny_llama
from tests.quant.conftest import TEXT
from tests.quant.tiny_models import KINDS, TOWERS, write_tiny
from whet.checkpoint.shards import TensorReader
from whet.core.errors import QuantizationError, UsageError, WhetError
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.quality.statistics import document_mean
from whet.quant import Judge, gptq, load_calibration, quantize, quantize_many
from whet.quant.architecture import read_architecture
from whet.quant.auto import choose
from whet.quant.calibration import conversation_key, held_out
from whet.quant.stream import LayerStream
from whet.requests import LogReader

BASE = {"group_size": 64, "calibration": {"samples": 100, "max_tokens": 48}}
AUTO = RecipeSpec.model_validate({**BASE, "method": "auto"})


@dataclass(frozen=True)
class Made:
    """A checkpoint by ``auto``, its text, and the conversations that fit and that judge."""

    done: QuantizedCheckpoint
    log: Path
    fitted: Path
    heldout: Path


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def judge(text: Path) -> Judge:
    return Judge(text=text, mean=document_mean)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty conversations of unequal length."""
    words = TEXT.split()
    rows = [{"text": " ".join(words[i % 9 :] * (1 + i % 4)) + f" {i}"} for i in range(60)]
    return write_lines(tmp_path_factory.mktemp("auto") / "log.jsonl", rows)


@pytest.fixture(scope="module")
def made(source: Path, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    requests = list(LogReader(log, documents=True))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    parts: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    judging = held_out(log, calibrates=True)
    assert len(judging) == 12, "a fifth of sixty"
    for request, line in zip(requests, lines, strict=True):
        parts[conversation_key(request) in judging].append(line)
    done = quantize(source, folder / "out", AUTO, calibration=log, judge=judge(log))
    assert [path.name for path in folder.iterdir()] == ["out"], "nothing is left of the other"
    return Made(
        done=done,
        log=log,
        fitted=write_lines(folder / "fitted.jsonl", parts[False]),
        heldout=write_lines(folder / "heldout.jsonl", parts[True]),
    )


def named(source: Path, made: Made, folder: Path) -> dict[str, QuantizedCheckpoint]:
    """Each method by name on the text that ``auto`` fitted on."""
    wanted = {
        method: (folder / method, RecipeSpec.model_validate({**BASE, "method": method}))
        for method in ("awq", "gptq")
    }
    outcomes = quantize_many(source, wanted, calibration=made.fitted)
    return {name: each for name, each in outcomes.items() if isinstance(each, QuantizedCheckpoint)}


@torch.no_grad()
def divergence(source: Path, checkpoint: str, documents: Path) -> float:
    """KL per token with transformers' own loading, in bf16, and forward of both whole models."""
    ids = load_calibration(documents, source, samples=100, max_tokens=48, seed=0).ids
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (source, checkpoint)
    ]
    total = 0.0
    for document in ids:
        whole, other = (
            model(torch.tensor([document])).logits[0].double().log_softmax(-1) for model in models
        )
        total += float((whole.exp() * (whole - other)).sum())
    return total / sum(map(len, ids))


def test_the_figures_are_those_of_the_whole_models_and_the_nearer_one_is_stored(
    source: Path, made: Made, tmp_path: Path
) -> None:
    """Documents that judge calibrate nothing: the named methods never saw them."""
    by_method = named(source, made, tmp_path)
    expected = {
        name: divergence(source, each.path, made.heldout) for name, each in by_method.items()
    }
    choice = made.done.choice
    assert choice is not None
    assert {name: each.value for name, each in choice.kl.items()} == pytest.approx(
        expected, rel=5e-3
    )
    least = min(expected, key=expected.__getitem__)
    assert (made.done.method, next(iter(choice.kl))) == (least, least)
    assert made.done.weights_sha256 == by_method[least].weights_sha256
    other = max(expected.values())
    assert choice.difference.value == pytest.approx(other - expected[least], rel=1e-2)
    documents = len(made.heldout.read_text().splitlines())
    assert {each.samples for each in choice.kl.values()} == {documents}


@pytest.mark.parametrize("kind", [*KINDS, *TOWERS])
@torch.no_grad()
def test_layer_by_layer_gives_the_probabilities_of_the_whole_model(
    kind: str, tmp_path: Path
) -> None:
    """Scaled and capped logits, tied heads and text decoders of larger models among them."""
    folder = write_tiny(kind, tmp_path / kind)
    config = json.loads((folder / "config.json").read_text())
    if kind == "granite":
        (folder / "config.json").write_text(json.dumps(config | {"logits_scaling": 4.0}))
    ids = [[5, 9, 300, 41, 7, 8, 1000], [11, 12, 13]]
    reader = TensorReader(folder)
    shapes = {name: header.shape for name, header in reader.headers.items()}
    architecture = read_architecture(config, shapes)
    stream = LayerStream(folder, ids, architecture, torch.device("cpu"))
    table = next(name for name in shapes if name.endswith("embed_tokens.weight"))
    stream.embed(reader.read(table))
    for index, prefix in enumerate(architecture.prefixes):
        stream.advance(index, reader.read_below(prefix))
    stream.load_head(reader.headers, reader.read)
    loader: Any = AutoModelForImageTextToText if kind in TOWERS else AutoModelForCausalLM
    whole = loader.from_pretrained(folder, dtype=torch.float32).eval()
    for document, states in zip(sorted(ids, key=len), stream.states(), strict=True):
        expected = whole(torch.tensor([document])).logits[0].log_softmax(-1)
        torch.testing.assert_close(stream.log_probabilities(states), expected, atol=2e-4, rtol=1e-3)


def test_the_reason_has_both_figures(made: Made) -> None:
    choice = made.done.choice
    assert choice is not None
    for each in choice.kl.values():
        assert f"{1e3 * each.value:.3f}" in choice.reason
    assert choice.reason.startswith(f"{made.done.method}, not ")


def test_the_same_command_returns_the_finished_one(
    source: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.quant.layer_pass.run_pass", None)
    out = Path(made.done.path)
    again = quantize(source, out, AUTO, calibration=made.log, judge=judge(made.log))
    assert again == made.done
    with pytest.raises(QuantizationError, match="other calibration text"):
        quantize(source, out, AUTO, calibration=made.log, judge=judge(made.heldout))


def test_the_one_with_less_divergence_is_chosen_whichever_it_is(tmp_path: Path) -> None:
    near, far = [(0.1, 10), (0.2, 20)], [(0.3, 10), (0.3, 20)]
    for sums, chosen in (({"awq": near, "gptq": far}, "awq"), ({"awq": far, "gptq": near}, "gptq")):
        choice = choose(sums, judge(tmp_path))
        assert next(iter(choice.kl)) == chosen
        assert choice.difference.value == pytest.approx(0.01)
        assert "within their spread" not in choice.reason
    same = choose({"awq": [(0.1, 9), (0.2, 9)], "gptq": [(0.2, 9), (0.11, 9)]}, judge(tmp_path))
    assert "within their spread" in same.reason


def test_probabilities_that_are_no_numbers_choose_nothing(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="gptq give no probabilities"):
        choose({"awq": [(0.1, 9)], "gptq": [(float("nan"), 9)]}, judge(tmp_path))


def test_a_conversation_is_on_one_side_however_far_it_went(tmp_path: Path) -> None:
    def turn(number: int, turns: int) -> dict[str, Any]:
        opening = {"role": "user", "content": f"question {number}"}
        return {
            "messages": [
                opening,
                *({"role": "user", "content": str(each)} for each in range(turns)),
            ]
        }

    log = write_lines(tmp_path / "log.jsonl", [turn(i, j) for i in range(50) for j in (0, 3)])
    judging = held_out(log, calibrates=True)
    assert len(judging) == 10
    keys = [conversation_key(request) for request in LogReader(log, documents=True)]
    assert keys[::2] == keys[1::2]
    assert held_out(log, calibrates=False) == set(keys)


def test_what_judges_is_taken_out_of_another_text(source: Path, made: Made, tmp_path: Path) -> None:
    """The whole log calibrates and a part of it judges: the rest is what ``auto`` fitted on."""
    done = quantize(source, tmp_path / "out", AUTO, calibration=made.log, judge=judge(made.heldout))
    assert done.weights_sha256 == made.done.weights_sha256
    assert done.choice == made.done.choice


def test_a_stored_head_that_config_ties_judges_nothing(log: Path, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", tie_word_embeddings=True)
    without = quantize(source, tmp_path / "without", AUTO, calibration=log, judge=judge(log))
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = -3 * tensors["model.embed_tokens.weight"]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    stored = quantize(source, tmp_path / "stored", AUTO, calibration=log, judge=judge(log))
    assert stored.choice == without.choice


def test_text_without_a_conversation_to_judge_is_refused(source: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "one.jsonl", [{"text": "the order was shipped"}])
    with pytest.raises(UsageError, match=r"one.jsonl has no conversation beside those"):
        quantize(source, tmp_path / "out", AUTO, calibration=text, judge=judge(text))
    assert not (tmp_path / "out").exists()


def test_a_method_that_fails_leaves_nothing_and_stops_no_other_recipe(
    source: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> object:
        raise QuantizationError("GPTQ cannot factor", fix="use method awq")

    monkeypatch.setattr(gptq, "reversed_factor", fails)
    wanted = {
        "auto": (tmp_path / "auto", AUTO),
        "awq": (tmp_path / "awq", RecipeSpec.model_validate({**BASE, "method": "awq"})),
    }
    outcomes = quantize_many(source, wanted, calibration=log, judge=judge(log))
    assert isinstance(outcomes["auto"], WhetError)
    assert "GPTQ cannot factor" in str(outcomes["auto"])
    assert isinstance(outcomes["awq"], QuantizedCheckpoint)
    assert [path.name for path in tmp_path.iterdir()] == ["awq"]
