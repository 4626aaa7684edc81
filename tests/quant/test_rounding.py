"""The grid and the packing are the compressed-tensors library's own."""

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor, pack_to_int32
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.lifecycle.forward import fake_quantize, quantize

from whet.quant.rounding import (
    Grid,
    format_of,
    make_grid,
    pack,
    quantization_config,
    stored_parts,
    unpack,
)
from whet.quant.verify import is_nearest

SCHEMES = ("W4A16", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8")


@pytest.fixture(
    params=[(name, size) for name in SCHEMES for size in (32, 64, 128)][:6]
    + [(name, 128) for name in SCHEMES[2:]]
)
def grid(request: pytest.FixtureRequest) -> Grid:
    return make_grid(*request.param, torch.bfloat16)


def weight_of(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(48, 256) * torch.rand(48, 1)


def test_a_scale_is_the_largest_weight_over_the_reach_of_the_grid() -> None:
    weight = torch.zeros(1, 32)
    weight[0, 4], weight[0, 9] = -15.0, 3.0
    scales = {name: make_grid(name, 32, torch.float32).scales(weight).item() for name in SCHEMES}
    assert scales == pytest.approx(
        {
            "W4A16": 15 / 7.5,
            "W8A16": 15 / 127.5,
            "W8A8": 15 / 127.5,
            "FP8_DYNAMIC": 15 / 448,
            "FP8": 15 / 448,
        }
    )


def test_rounding_equals_the_library(grid: Grid) -> None:
    weight = weight_of()
    scales = grid.scales(weight)
    scale = scales[:1, 0] if grid.per_tensor else scales
    expected = fake_quantize(weight, scale, None, grid.scheme.weights)
    torch.testing.assert_close(grid.round(weight, scales), expected, rtol=1e-6, atol=1e-7)


def test_stored_tensors_equal_the_library_bit_for_bit(grid: Grid) -> None:
    weight = weight_of(1)
    scales = grid.stored_scale(grid.scales(weight))
    packed = pack(weight, scales, grid)
    scale = scales[:1, 0] if grid.per_tensor else scales
    args = grid.scheme.weights
    levels = quantize(weight, scale, None, args, dtype=args.pytorch_dtype())
    if grid.packed:
        assert torch.equal(packed["weight_packed"], pack_to_int32(levels, grid.bits))
    else:
        assert torch.equal(packed["weight"].float(), levels.float())
    result = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in packed.items()}
    expected = stored_parts(grid, 48, 256)
    assert result == {name: part for name, part in expected.items() if name != "input_scale"}
    assert sum(8 * part.numel() * part.element_size() for part in packed.values()) == (
        grid.stored_bits(48, 256)
    )


def test_the_library_decompresses_to_what_was_intended(grid: Grid) -> None:
    weight = weight_of(2)
    scales = grid.scales(weight)
    packed = pack(weight, grid.stored_scale(scales), grid)
    back = BaseCompressor.get_value_from_registry(format_of(grid)).decompress(
        dict(packed), grid.scheme
    )["weight"]
    intended = grid.round(weight, scales)
    torch.testing.assert_close(back.float(), intended, rtol=2**-7, atol=0)
    assert torch.equal(unpack(packed, grid), back.float())


def test_nibbles_are_sequential_and_offset_by_eight() -> None:
    """By hand: levels −8 … −1 are nibbles 0 … 7, least significant first."""
    grid = make_grid("W4A16", 32, torch.float32)
    weight = torch.arange(-8.0, 0).repeat(1, 4)
    packed = pack(weight, torch.ones(1, 1), grid)["weight_packed"]
    assert packed.tolist() == [[0x76543210] * 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_zero_rows_zero_groups_and_tiny_weights_stay_finite(
    scheme: str, dtype: torch.dtype
) -> None:
    grid = make_grid(scheme, 32, dtype)
    weight = torch.randn(8, 64)
    weight[0] = 0
    weight[1, :32] = 0
    weight[2, :32] = 6e-8  # the least number of float16; over 7.5 it would be a scale of zero
    packed = pack(weight, grid.stored_scale(grid.scales(weight)), grid)
    assert bool((packed["weight_scale"] > 0).all())
    back = unpack(packed, grid)
    assert bool(torch.isfinite(back).all())
    assert back[0].abs().max() == 0
    assert back[1, :32].abs().max() == 0


def test_a_wrong_code_is_found_on_reading_back(grid: Grid) -> None:
    weight = weight_of(3)
    scales = grid.scales(weight)
    packed = pack(weight, grid.stored_scale(scales), grid)
    assert is_nearest(unpack(packed, grid), weight, scales, grid)
    if grid.packed:
        packed["weight_packed"][5, 7] ^= 1 << 2
    else:
        packed["weight"].view(torch.uint8)[5, 7] ^= 1 << 6
    assert not is_nearest(unpack(packed, grid), weight, scales, grid)


def test_the_config_is_what_the_library_reads_back() -> None:
    four = make_grid("W4A16", 32, torch.bfloat16)
    whole = quantization_config(four, ignore=["lm_head"], kv_cache=True)
    read = QuantizationConfig.model_validate(whole.model_dump(mode="json"))
    (group,) = read.config_groups.values()
    weights = group.weights
    assert (weights.num_bits, weights.group_size, weights.symmetric) == (4, 32, True)
    assert (read.format, read.ignore) == ("pack-quantized", ["lm_head"])
    assert read.kv_cache_scheme is not None
    assert read.kv_cache_scheme.num_bits == 8
