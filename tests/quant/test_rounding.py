"""The grid and the packing are the compressed-tensors library's own."""

import pytest
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor, pack_to_int32
from compressed_tensors.quantization.lifecycle.forward import fake_quantize, quantize

from whet.core.spec import RecipeSpec
from whet.quant.packing import pack, quantization_config, unpack, within_rounding
from whet.quant.rounding import Grid, make_grid


@pytest.fixture(params=[32, 64, 128])
def grid(request: pytest.FixtureRequest) -> Grid:
    return make_grid(RecipeSpec(group_size=request.param), torch.bfloat16)


def weight_of(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(48, 256) * torch.rand(48, 1)


def test_a_scale_is_the_largest_weight_over_seven_and_a_half() -> None:
    weight = torch.zeros(1, 32)
    weight[0, 4], weight[0, 9] = -15.0, 3.0
    grid = make_grid(RecipeSpec(group_size=32), torch.bfloat16)
    assert grid.scales(weight).tolist() == [[2.0]]


def test_rounding_equals_the_library(grid: Grid) -> None:
    weight = weight_of()
    scale = grid.scales(weight)
    expected = fake_quantize(weight, scale, None, grid.scheme.weights)
    torch.testing.assert_close(grid.round(weight, scale), expected, rtol=0, atol=0)


def test_packed_words_equal_the_library_bit_for_bit(grid: Grid) -> None:
    weight = weight_of(1)
    scale = grid.stored_scale(grid.scales(weight))
    packed = pack(weight, scale, grid)
    levels = quantize(weight, scale, None, grid.scheme.weights, dtype=torch.int8)
    assert torch.equal(packed["weight_packed"], pack_to_int32(levels, 4))
    assert packed["weight_packed"].shape == (48, 32)
    assert packed["weight_shape"].tolist() == [48, 256]
    assert packed["weight_scale"].dtype == torch.bfloat16


def test_the_library_decompresses_to_what_was_intended(grid: Grid) -> None:
    weight = weight_of(2)
    scale = grid.scales(weight)
    packed = pack(weight, grid.stored_scale(scale), grid)
    back = PackedQuantizationCompressor.decompress(dict(packed), grid.scheme)["weight"]
    intended = grid.round(weight, scale)
    torch.testing.assert_close(back.float(), intended, rtol=2**-8, atol=0)
    assert torch.equal(unpack(packed, grid), back.float())


def test_nibbles_are_sequential_and_offset_by_eight() -> None:
    """By hand: levels −8 … −1 are nibbles 0 … 7, least significant first."""
    grid = make_grid(RecipeSpec(group_size=32), torch.float32)
    weight = torch.arange(-8.0, 0).repeat(1, 4)
    packed = pack(weight, torch.ones(1, 1), grid)["weight_packed"]
    assert packed.tolist() == [[0x76543210] * 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_zero_rows_zero_groups_and_tiny_weights_stay_finite(dtype: torch.dtype) -> None:
    grid = make_grid(RecipeSpec(group_size=32), dtype)
    weight = torch.randn(4, 64)
    weight[0] = 0
    weight[1, :32] = 0
    weight[2, :32] = 6e-8  # the least number of float16; over 7.5 it would be a scale of zero
    packed = pack(weight, grid.stored_scale(grid.scales(weight)), grid)
    assert bool((packed["weight_scale"] > 0).all())
    back = unpack(packed, grid)
    assert bool(torch.isfinite(back).all())
    assert back[0].abs().max() == 0
    assert back[1, :32].abs().max() == 0


def test_a_wrong_nibble_is_found_on_reading_back() -> None:
    grid = make_grid(RecipeSpec(group_size=64), torch.bfloat16)
    weight = weight_of(3)
    packed = pack(weight, grid.stored_scale(grid.scales(weight)), grid)
    scale = packed["weight_scale"]
    assert within_rounding(unpack(packed, grid), weight, scale, grid)
    packed["weight_packed"][5, 7] ^= 1 << 12
    assert not within_rounding(unpack(packed, grid), weight, scale, grid)


def test_the_config_is_what_the_library_reads_back() -> None:
    from compressed_tensors.quantization import QuantizationConfig

    plain = quantization_config(make_grid(RecipeSpec(group_size=32), torch.bfloat16))
    read = QuantizationConfig.model_validate(plain)
    (group,) = read.config_groups.values()
    assert (group.weights.num_bits, group.weights.group_size, group.weights.symmetric) == (
        4,
        32,
        True,
    )
    assert (read.format, read.ignore) == ("pack-quantized", ["lm_head"])
