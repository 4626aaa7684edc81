"""Layers of every known architecture: measured like the whole model, folded without a change."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from whet.quant.architecture import Architecture, read_architecture
from whet.quant.fold import (
    LinearScales,
    fold_scales,
    round_to_norm,
    row_scale,
    scale_rounding,
    share_across_heads,
)
from whet.quant.stream import LayerStream, batch_by_length

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 50,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": True, "attention_bias": True},
    "mistral": {"sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {"num_key_value_heads": 4},
    "granite": {"residual_multiplier": 0.5, "embedding_multiplier": 2.0},
    "smollm3": {"pad_token_id": 0},
    "gemma": {"pad_token_id": 0},
    "gemma2": {"pad_token_id": 0, "sliding_window": 4, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"pad_token_id": 0, "sliding_window": 4, "sliding_window_pattern": 2},
}


@pytest.fixture(params=sorted(KINDS))
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **{**SHAPE, **KINDS[request.param]})
    # Only the plain attention caps its scores, as Gemma 2 does.
    attention = "eager" if request.param == "gemma2" else "sdpa"
    built: nn.Module = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    ).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            parameter.normal_(std=0.3)
            if "norm" in name and "gemma" not in request.param:
                parameter.add_(1.0)
    return built


def architecture_of(model: Any) -> Architecture:
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return read_architecture(model.config.to_dict(), shapes)


def layer_of(model: Any, index: int) -> dict[str, Tensor]:
    return dict(model.model.layers[index].state_dict())


@torch.no_grad()
def test_inputs_are_those_of_the_whole_model_without_padding(model: Any, tmp_path: Path) -> None:
    """The reference runs transformers' own model on one sample at a time."""
    model.config.save_pretrained(tmp_path)
    ids = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12], [13, 14], [15, 16, 17, 18, 19]]
    down_inputs: list[Tensor] = []
    down = model.model.layers[1].mlp.down_proj
    handle = down.register_forward_pre_hook(
        lambda _module, inputs: down_inputs.append(inputs[0][0])
    )
    for sample in ids:
        model(torch.tensor([sample]))
    handle.remove()
    x = torch.cat(down_inputs).double()

    stream = LayerStream(tmp_path, ids, architecture_of(model), CPU)
    stream.embed(model.model.embed_tokens.weight)
    stream.measure(0, layer_of(model, 0))
    measured = stream.measure(1, layer_of(model, 1))
    stats = measured.units["down"]
    assert stats.tokens == 19
    torch.testing.assert_close(stats.gram.double(), x.T @ x / 19, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(stats.mean_abs.double(), x.abs().mean(dim=0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(stats.max_abs.double(), x.abs().amax(dim=0), rtol=1e-3, atol=1e-4)
    caches = [DynamicCache() for _ in ids]  # one that forgets nothing, whatever the window
    for sample, cache in zip(ids, caches, strict=True):
        model(torch.tensor([sample]), past_key_values=cache)
    for name in ("keys", "values"):
        peak = torch.stack(
            [getattr(cache.layers[1], name).abs().amax(dim=(0, 2)) for cache in caches]
        )
        torch.testing.assert_close(getattr(measured, name), peak.amax(dim=0).flatten())


@torch.no_grad()
def test_the_output_change_is_that_of_the_models_own_layer(model: Any, tmp_path: Path) -> None:
    """The reference is transformers' own layer with the weight replaced, one sample at a time."""
    model.config.save_pretrained(tmp_path)
    ids = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12], [13, 14], [15, 16, 17, 18, 19]]
    stream = LayerStream(tmp_path, ids, architecture_of(model), CPU)
    stream.embed(model.model.embed_tokens.weight)
    stream.measure(0, layer_of(model, 0))
    weight = model.model.layers[1].mlp.down_proj.weight
    changed = 1.1 * weight
    measured = stream.measure(1, layer_of(model, 1)).output_change(
        {"mlp.down_proj.weight": changed}
    )

    def outputs() -> Tensor:
        rows: list[Tensor] = []
        handle = model.model.layers[1].register_forward_hook(
            lambda _module, _inputs, output: rows.append(
                (output[0] if isinstance(output, tuple) else output).reshape(-1, weight.shape[0])
            )
        )
        for sample in ids:
            model(torch.tensor([sample]))
        handle.remove()
        return torch.cat(rows).double()

    before, source = outputs(), weight.clone()
    weight.copy_(changed)
    after = outputs()
    weight.copy_(source)
    change = (after - before).square().sum(dim=1) / before.square().sum(dim=1)
    assert measured == pytest.approx(float(change.mean()), rel=1e-3)


@torch.no_grad()
def test_the_samples_of_full_length_rows_come_from_many_positions(tmp_path: Path) -> None:
    """Each position has a token of its own, so the sampled input of layer 0 names its position."""
    torch.manual_seed(0)
    length = 128  # 32 rows make a batch of 4,096 tokens
    config = AutoConfig.for_model("llama", **{**SHAPE, "vocab_size": length})
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    config.save_pretrained(tmp_path)

    def sample(rows: int) -> Tensor:
        stream = LayerStream(tmp_path, [list(range(length))] * rows, architecture_of(model), CPU)
        stream.embed(model.model.embed_tokens.weight)
        return stream.measure(0, layer_of(model, 0)).units["qkv"].sample

    taken = sample(64)
    by_position = model.model.layers[0].input_layernorm(model.model.embed_tokens.weight)
    positions = torch.cdist(taken, by_position).argmin(dim=1)
    assert torch.allclose(taken, by_position[positions], atol=1e-5)
    assert len(taken) == 16
    assert len(set(positions.tolist())) >= 12
    assert not torch.equal(taken[:8], taken[8:])
    assert torch.equal(taken, sample(64))
    assert torch.equal(taken[:8], sample(32))


@torch.no_grad()
def test_folding_leaves_the_layers_answer_as_it_was(model: Any) -> None:
    """Random scales, no rounding: norms, biases, rows and columns must cancel exactly."""
    tensors, head_dim = layer_of(model, 0), 16
    architecture = architecture_of(model)
    units, offset = architecture.units[0], architecture.norm_offset
    bases = {linear: None for unit in units for linear in unit.linears}
    columns: dict[str, Tensor] = {}
    for unit in units:
        rounding = scale_rounding(unit, tensors, head_dim=head_dim, norm_offset=offset)
        assert rounding is not None
        inputs = tensors[f"{unit.linears[0]}.weight"].shape[1]
        columns |= dict.fromkeys(unit.linears, rounding(torch.rand(inputs) * 3 + 0.1))
    fed = {unit.fold: columns[unit.linears[0]] for unit in units if unit.fold_is_linear}
    whole = {}
    for linear in bases:
        outputs = tensors[f"{linear}.weight"].shape[0]
        rows = row_scale(fed[linear], outputs, head_dim) if linear in fed else torch.ones(outputs)
        whole[linear] = LinearScales(columns=columns[linear], rows=rows.unsqueeze(1))
    folded = {**tensors, **fold_scales(units, tensors, whole, offset)}
    for linear, scales in whole.items():
        folded[f"{linear}.weight"] = scales.apply(tensors[f"{linear}.weight"])
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    before = model(ids).logits
    model.model.layers[0].load_state_dict(folded)
    torch.testing.assert_close(model(ids).logits, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_absorbs_its_scale_without_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = torch.randn(256).to(dtype)
    norm[7] = 0
    scale = round_to_norm(torch.rand(256) * 4 + 0.01, norm=norm)
    folded = norm.float() / scale
    torch.testing.assert_close(folded.to(dtype).float(), folded, rtol=1e-6, atol=0)
    assert scale[7] == 1
    assert bool((scale > 0).all())


def test_heads_that_share_a_value_head_share_a_scale() -> None:
    """Two value heads of one channel, two query heads each: √(1·4) and √(9·1)."""
    scale = share_across_heads(torch.tensor([1.0, 4.0, 9.0, 1.0]), repeats=2, head_dim=1)
    torch.testing.assert_close(scale, torch.tensor([2.0, 2.0, 3.0, 3.0]))
    torch.testing.assert_close(row_scale(scale, 2, 1), torch.tensor([2.0, 3.0]))


def test_batches_hold_every_sample_within_the_budget() -> None:
    samples = [[1] * length for length in (5, 300, 7, 2, 300, 90)]
    batches = batch_by_length(samples, 320)
    assert sorted(len(sample) for batch in batches for sample in batch) == [2, 5, 7, 90, 300, 300]
    assert all(len(batch) * max(map(len, batch)) <= 320 for batch in batches)
