"""Scales that fit the levels, and levels on those scales."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.quant.test_awq import problem
from whet.quant import coordinate_descent
from whet.quant.coordinate_descent import CoordinateDescent, row_slices
from whet.quant.gram import row_errors
from whet.quant.layer_pass import METHODS
from whet.quant.rounding import make_grid

GRID = make_grid("W4A16", 32, torch.float32)


def correlated(seed: int, channels: int = 96) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(400, 40) @ torch.randn(40, channels) + 0.5 * torch.randn(400, channels)
    return torch.randn(24, channels), x.T @ x / 400


def test_the_scales_are_those_of_least_squares() -> None:
    """Against numpy's way: each row's groups as the columns of a least-squares problem."""
    weight, gram = correlated(0)
    scale = GRID.scales(weight, 0.9)
    part = CoordinateDescent(weight, scale, gram, GRID)
    rounded = part.rounded
    part.rescale()
    root = torch.linalg.cholesky(gram.double())
    levels = GRID.grouped(rounded).double() / scale.unsqueeze(-1)
    for row in range(len(weight)):
        columns = torch.stack(
            [torch.nn.functional.pad(levels[row, g], (32 * g, 64 - 32 * g)) for g in range(3)]
        )
        best = torch.linalg.lstsq((columns @ root).T, (weight[row].double() @ root).unsqueeze(1))
        torch.testing.assert_close(
            part.scale[row].double(), best.solution[:, 0], rtol=1e-3, atol=1e-4
        )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), scheme=st.sampled_from(["W4A16", "W8A8"]))
def test_a_row_never_gets_worse_and_stays_on_the_grid(seed: int, scheme: str) -> None:
    weight, gram = correlated(seed)
    weight[:3] = 0
    weight[3:6, 32:64] = 0
    grid = make_grid(scheme, 32, torch.bfloat16)
    scale = grid.scales(weight)
    before = row_errors(grid.round(weight, scale) - weight, gram)
    part = CoordinateDescent(weight, scale, gram, grid)
    part.sweep(grid.round, 4)
    after = row_errors(part.rounded - weight, gram)
    assert bool((after <= before * (1 + 1e-4) + 1e-6).all())
    assert bool((part.scale > 0).all())
    torch.testing.assert_close(grid.round(weight, part.scale), part.rounded)
    torch.testing.assert_close(part.errors, after, rtol=1e-3, atol=1e-5)


def test_it_buys_what_no_range_of_single_groups_can() -> None:
    weight, gram = correlated(1)
    scale = GRID.scales(weight)
    part = CoordinateDescent(weight, scale, gram, GRID)
    before = float(part.errors.sum())
    part.sweep(GRID.round, 8)
    assert float(part.errors.sum()) < 0.85 * before


def test_a_second_moment_without_rank_leaves_usable_scales() -> None:
    weight, _ = correlated(2)
    part = CoordinateDescent(weight, GRID.scales(weight), torch.zeros(96, 96), GRID)
    part.sweep(GRID.round, 2)
    assert torch.equal(part.scale, GRID.scales(weight))


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_parts_of_the_rows_are_the_whole(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(37, 96), torch.randn(300, 96) @ torch.randn(96, 96)
    unit = problem(weight, x, grid=GRID)
    whole = METHODS[method]([[unit]])[0]
    monkeypatch.setattr(coordinate_descent, "PART", 96 * 10)
    assert len(list(row_slices(weight))) == 4
    parts = METHODS[method]([[unit]])[0]
    torch.testing.assert_close(parts.scale, whole.scale)
    torch.testing.assert_close(parts.weight, whole.weight)
