"""Distances against closed forms and against a plain double-precision computation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import distance, scorer
from benchmarks.distance import DistanceMeter, Distances
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.checkpoint_factory import write_tiny_llama
from tests.quality.stored import write_plain, write_stored
from whet.core.errors import CheckpointError, MeasurementError, UsageError
from whet.core.protocols import Progress
from whet.core.records import decode, encode
from whet.quality.prompts import Ids


def measure_distances(
    reference: Path,
    candidate: Path,
    documents: Sequence[Ids],
    *,
    device: str | None = None,
    progress: Progress | None = None,
) -> Distances:
    return DistanceMeter(reference, documents, device=device).measure(candidate, progress=progress)


DICE = np.random.default_rng(7)
DOCUMENTS = [tuple(DICE.integers(2, 280, size=n).tolist()) for n in (17, 5, 30, 17, 2, 9, 24, 11)]
POSITIONS = sum(map(len, DOCUMENTS)) - len(DOCUMENTS)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with weights large enough for peaked predictions."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("distance") / "source")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] *= 8
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def log_probabilities(
    folder: Path, *, before: Callable[[Tensor], Tensor] | None = None
) -> list[Tensor]:
    """log p [T−1, V] of each document, one at a time, in float64 from the whole logits.

    ``before`` acts on the input of every linear of the decoder.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name, module in model.named_modules():
        if before is not None and isinstance(module, nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(lambda _, args: (before(args[0]),))
    with torch.no_grad():
        logits = (model(torch.tensor([ids])).logits[0, :-1] for ids in DOCUMENTS)
        return [one.double().log_softmax(-1) for one in logits]


def dequantized(source: Path, stored: Path, out: Path) -> Path:
    """A plain checkpoint of the weights of a per-row one: integers or floats times scales."""
    tensors = load_file(stored / "model.safetensors")
    weights = {
        name: tensors[name].float() * tensors[f"{name}_scale"].float()
        for name in tensors
        if f"{name}_scale" in tensors
    }
    return write_plain(source, out, **weights)


def int8_by_token(x: Tensor) -> Tensor:
    """Symmetric int8 with one scale a token, as the W8A8 kernels have it."""
    scale = x.abs().amax(dim=-1, keepdim=True) / 127.5
    return (x / scale).round().clamp(-128, 127) * scale


def test_a_model_is_at_no_distance_from_itself(source: Path) -> None:
    found = measure_distances(source, source, DOCUMENTS)
    assert (found.kl.value, found.kl_p99.value, found.flips.value) == (0, 0, 0)
    assert (found.perplexity_ratio.value, found.perplexity_ratio.low) == (1.0, 1.0)
    assert found.perplexity == found.reference_perplexity
    assert found.rounded == ()
    assert sum(one.tokens for one in found.documents) == POSITIONS
    assert decode(Distances, encode(found)) == found


def test_a_head_of_zeros_guesses(source: Path, tmp_path: Path) -> None:
    """Uniform predictions: perplexity is V, and KL is log V minus the source's entropy."""
    vocab = load_file(source / "model.safetensors")["lm_head.weight"].shape[0]
    blind = write_plain(source, tmp_path / "blind", lm_head__weight=torch.zeros(vocab, 128))
    found = measure_distances(source, blind, DOCUMENTS)
    assert found.perplexity.value == pytest.approx(vocab, rel=1e-5)
    assert found.perplexity.low == pytest.approx(vocab, rel=1e-5)
    p = torch.cat(log_probabilities(source))
    entropy = -(p.exp() * p).sum(-1)
    assert found.kl.value == pytest.approx(math.log(vocab) - entropy.mean().item(), rel=1e-5)
    # Every position says token 0, so it flips wherever the source says another.
    assert found.flips.value == (p.argmax(-1) != 0).double().mean().item()


def test_every_figure_by_a_plain_computation(source: Path, tmp_path: Path) -> None:
    stored = write_stored(source, tmp_path / "w4", "W4A16")
    found = measure_distances(source, stored, DOCUMENTS)
    theirs, ours = log_probabilities(source), log_probabilities(stored)
    kls = [(p.exp() * (p - q)).sum(-1) for p, q in zip(theirs, ours, strict=True)]
    flips = [(p.argmax(-1) != q.argmax(-1)).sum() for p, q in zip(theirs, ours, strict=True)]
    whole = torch.cat(kls)
    assert found.kl.value == pytest.approx(whole.mean().item(), rel=1e-4)
    assert found.kl_p99.value == pytest.approx(whole.quantile(0.99).item(), rel=1e-4)
    assert found.kl_p99.certified is (POSITIONS >= 662)
    assert found.flips.value == sum(flips).item() / POSITIONS
    assert found.flips.value > 0
    assert found.kl.samples == len(DOCUMENTS)
    assert found.kl.low < found.kl.value < found.kl.high
    for index, ids in enumerate(DOCUMENTS):
        at = torch.tensor(ids[1:]).unsqueeze(1)
        kept = found.documents[index]
        assert kept.nll == pytest.approx(-ours[index].gather(1, at).sum().item(), rel=1e-5)
        assert kept.reference_nll == pytest.approx(
            -theirs[index].gather(1, at).sum().item(), rel=1e-5
        )
        assert kept.kl == pytest.approx(kls[index].sum().item(), rel=1e-4, abs=1e-7)
        assert (kept.flips, kept.tokens) == (flips[index], len(ids) - 1)
    nll = sum(one.nll for one in found.documents)
    assert found.perplexity.value == pytest.approx(math.exp(nll / POSITIONS))
    assert found.rounded == ("weights",)


def test_batches_and_slices_change_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = write_stored(source, tmp_path / "w4", "W4A16")
    whole = measure_distances(source, stored, DOCUMENTS)
    monkeypatch.setattr(distance, "_BATCH_TOKENS", {"cpu": 40})
    monkeypatch.setattr(distance, "_SLICE_BYTES", 3 * 4 * 6 * 300)
    ticks: list[tuple[int, int]] = []
    small = measure_distances(
        source, stored, DOCUMENTS, progress=lambda done, total: ticks.append((done, total))
    )
    assert small.kl.value == pytest.approx(whole.kl.value, rel=1e-4)
    assert small.perplexity.value == pytest.approx(whole.perplexity.value, rel=1e-5)
    assert small.flips == whole.flips
    assert small.data_sha256 == whole.data_sha256
    assert len(ticks) > 2
    assert ticks[-1] == (len(DOCUMENTS), len(DOCUMENTS))


def test_int8_activations_are_in_the_forward(source: Path, tmp_path: Path) -> None:
    stored = write_stored(source, tmp_path / "w8", "W8A8")
    weights_alone = dequantized(source, stored, tmp_path / "weights")
    found = measure_distances(source, stored, DOCUMENTS)
    alone = measure_distances(source, weights_alone, DOCUMENTS)
    assert found.rounded == ("weights", "activations")
    assert alone.rounded == ()
    assert found.kl.value > 1.3 * alone.kl.value
    by_hand = log_probabilities(weights_alone, before=int8_by_token)
    kl = [
        (p.exp() * (p - q)).sum(-1) for p, q in zip(log_probabilities(source), by_hand, strict=True)
    ]
    assert found.kl.value == pytest.approx(torch.cat(kl).mean().item(), rel=0.01)


def test_fp8_activations_follow_the_stored_scale(source: Path, tmp_path: Path) -> None:
    dynamic = measure_distances(
        source, write_stored(source, tmp_path / "a", "FP8_DYNAMIC"), DOCUMENTS
    )
    wide = measure_distances(source, write_stored(source, tmp_path / "b", "FP8"), DOCUMENTS)
    # An input of 1 saturates 448 steps of 0.0001: nothing useful is left.
    tight = write_stored(source, tmp_path / "c", "FP8", input_scale=1e-4)
    assert dynamic.rounded == wide.rounded == ("weights", "activations")
    assert measure_distances(source, tight, DOCUMENTS).kl.value > 10 * wide.kl.value


def test_fp8_keys_and_values_follow_the_stored_scale(source: Path, tmp_path: Path) -> None:
    plain = measure_distances(source, write_stored(source, tmp_path / "a", "W4A16"), DOCUMENTS)
    kept = write_stored(source, tmp_path / "b", "W4A16", kv_scale=0.01)
    found = measure_distances(source, kept, DOCUMENTS)
    assert found.rounded == ("weights", "kv_cache")
    assert found.kl.value != plain.kl.value
    # 448 steps of 1e-5 end at 0.0045, far below the values: attention loses them.
    lost = write_stored(source, tmp_path / "c", "W4A16", kv_scale=1e-5)
    assert measure_distances(source, lost, DOCUMENTS).kl.value > 2 * found.kl.value


# What cannot be measured


def test_a_document_of_one_token_has_nothing_to_predict(source: Path) -> None:
    found = measure_distances(source, source, [(5,), DOCUMENTS[0]])
    assert len(found.documents) == 1
    with pytest.raises(UsageError, match="no held-out document has two tokens"):
        measure_distances(source, source, [(5,)])


def test_a_lost_scale_is_not_replaced_by_chance(source: Path, tmp_path: Path) -> None:
    stored = write_stored(source, tmp_path / "w8", "W8A8")
    tensors = load_file(stored / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight_scale"]
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.mlp\.down_proj\.weight_s"):
        measure_distances(source, stored, DOCUMENTS)


def test_numbers_that_are_not_finite(source: Path, tmp_path: Path) -> None:
    norm = torch.ones(128)
    norm[3] = math.nan
    broken = write_plain(source, tmp_path / "nan", model__norm__weight=norm)
    with pytest.raises(MeasurementError, match="not finite; do not serve it"):
        measure_distances(source, broken, DOCUMENTS)


def test_another_vocabulary(source: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", vocab_size=310)
    with pytest.raises(UsageError, match="310 entries in its vocabulary and its source"):
        measure_distances(source, other, DOCUMENTS)


def test_a_form_of_another_library(source: Path, tmp_path: Path) -> None:
    other = write_plain(source, tmp_path / "gptq")
    config = json.loads((other / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq"}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="is stored as gptq"):
        measure_distances(source, other, DOCUMENTS)


def test_a_device_that_is_not_there(source: Path) -> None:
    with pytest.raises(UsageError, match="there is no device 'warp'; use cpu or cuda"):
        measure_distances(source, source, DOCUMENTS, device="warp")


def test_too_little_memory(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "free_bytes", lambda _device: 1000)
    with pytest.raises(MeasurementError, match=r"both models in float32 need .* 1000 B free"):
        measure_distances(source, source, DOCUMENTS)


def test_a_head_that_scales_its_logits(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer.Scorer, "logits", lambda self, hidden: hidden @ torch.ones(128, 300))
    with pytest.raises(MeasurementError, match="changes its logits after the head"):
        measure_distances(source, source, DOCUMENTS)
