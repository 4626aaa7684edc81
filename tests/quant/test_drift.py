"""Whether calibration text is like the workload's: figures by hand, verdicts on real text."""

import argparse
import inspect
import math
import pathlib
import pydoc_data.topics
import tokenize
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy.spatial.distance import jensenshannon

from tests.checkpoint_factory import write_tiny_llama
from whet.core.errors import CheckpointError
from whet.demo import pair_paths, write_inputs
from whet.quant import Calibration, load_calibration
from whet.quant.drift import FAR_DISTANCE, drift, far_sentence, measure_drift, warn_if_far
from whet.quant.likelihood import model_perplexities

TOKENIZER = pair_paths()[0]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def load(path: Path, *, samples: int = 512, max_tokens: int = 512) -> Calibration:
    return load_calibration(path, TOKENIZER, samples=samples, max_tokens=max_tokens, seed=0)


def python_source() -> str:
    return "\n".join(map(inspect.getsource, (inspect, tokenize, argparse, pathlib, typing)))


def english() -> str:
    return "\n".join(pydoc_data.topics.topics.values())


def test_the_bundled_calibration_fits_the_bundled_workload(inputs: Path) -> None:
    calibration = load(inputs / "calibration.jsonl")
    found = measure_drift(calibration, inputs / "workload.jsonl", TOKENIZER)
    assert found.judged
    assert found.distance < 0.5 < FAR_DISTANCE
    assert found.overlap > 0.98
    assert warn_if_far(calibration, inputs / "workload.jsonl", TOKENIZER) is None


@pytest.mark.parametrize("text", [python_source, english])
def test_other_text_is_far_and_the_sentence_says_what_to_do(
    text: Callable[[], str], inputs: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text(text(), encoding="utf-8")
    found = warn_if_far(load(other), inputs / "workload.jsonl", TOKENIZER)
    assert found is not None
    assert found.startswith("the calibration text other.txt is far from the workload's workload.")
    assert "give a request log of your traffic as the calibration (--calibration" in found


def test_few_samples_of_other_text_are_still_far_and_fewer_are_not_judged(
    inputs: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text(english(), encoding="utf-8")
    small = load(other, samples=64, max_tokens=256)
    assert measure_drift(small, inputs / "workload.jsonl", TOKENIZER).far
    smaller = measure_drift(
        load(other, samples=16, max_tokens=256), inputs / "workload.jsonl", TOKENIZER
    )
    assert not smaller.judged
    assert far_sentence(smaller, "a", "b") is None


def test_the_distance_is_that_of_scipy() -> None:
    """Bigrams that do not repeat within eight tokens: every token but the first counts."""
    one, two = [1, 2, 3, 4, 5, 6, 1, 3], [1, 2, 4, 6, 8, 9, 2, 5]
    found = drift([one], [two])
    counts = [[ids[1:].count(token) for token in range(10)] for ids in (one, two)]
    assert found.distance == pytest.approx(jensenshannon(*counts, base=2), rel=1e-12)
    assert found.overlap == pytest.approx(5 / 7)  # all but 8 and 9


def test_the_bigram_perplexity_by_hand() -> None:
    """Witten–Bell on 1 2 1 3, five tokens known: p(w) = (n(w) + 3/5) / (3 + 3).

    After 1 stand 2 and 3, once each: p(2|1) = (1 + 2 p(2)) / 4; after 3 stands nothing: p(4).
    """
    unigram = {2: 1.6 / 6, 4: 0.6 / 6}
    found = drift([[1, 2, 1, 3], [], [], []], [[1, 2], [3, 4]])
    expected = math.exp(-(math.log((1 + 2 * unigram[2]) / 4) + math.log(unigram[4])) / 2)
    assert found.workload_perplexity == pytest.approx(expected, rel=1e-12)


def test_what_is_said_again_counts_once() -> None:
    prompt = list(range(20, 60))
    once = drift([[*prompt, 7, 8, 9]], [[1, 2, 3]])
    often = drift([[*prompt, 7, 8, 9]] * 30, [[1, 2, 3]] * 5)
    assert once.calibration_tokens == often.calibration_tokens == 42
    assert once.distance == often.distance


def test_special_tokens_take_no_part() -> None:
    marked = drift([[0, 5, 6, 0, 7, 5]], [[0, 6, 7]], special={0})
    assert marked == drift([[5, 6, 7, 5]], [[6, 7]])


def test_empty_texts_are_not_judged() -> None:
    found = drift([[], [1]], [])
    assert not found.judged
    assert (found.calibration_tokens, found.workload_tokens) == (0, 0)


def test_a_workload_that_cannot_be_read_is_left_to_its_reader(inputs: Path) -> None:
    calibration = load(inputs / "calibration.jsonl", samples=8)
    assert warn_if_far(calibration, inputs / "absent.jsonl", TOKENIZER) is None


def test_the_models_own_perplexity_is_told(inputs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(english(), encoding="utf-8")
    found = measure_drift(load(other), inputs / "workload.jsonl", TOKENIZER, model=TOKENIZER)
    assert found.model_calibration_perplexity is not None
    assert found.model_workload_perplexity is not None
    assert found.model_calibration_perplexity > 1000 > found.model_workload_perplexity
    sentence = far_sentence(found, "a", "b")
    assert sentence is not None
    assert "the model's own perplexity is" in sentence


def test_the_models_perplexity_is_that_of_its_loss(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    source = write_tiny_llama(tmp_path / "model")
    documents = [[3, 9, 27, 81], [5, 25, 125]]
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        rows = [torch.tensor([ids]) for ids in documents]
        losses = [float(model(row, labels=row).loss) for row in rows]
    expected = math.exp((losses[0] * 3 + losses[1] * 2) / 5)
    assert model_perplexities(source, documents, device="cpu") == pytest.approx((expected,))


def test_a_model_too_large_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tiny_llama(tmp_path / "model")
    monkeypatch.setattr("whet.quant.likelihood._CPU_PARAMETERS", 1000)
    assert model_perplexities(source, [[1, 2]], device="cpu") is None


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "model", model_type="nonsense")
    with pytest.raises(CheckpointError, match="model cannot be loaded"):
        model_perplexities(source, [[1, 2]], device="cpu")
