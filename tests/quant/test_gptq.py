"""Error feedback: against the textbook recursion, and on degenerate inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.quant.test_awq import problem, replayed, with_outliers
from whet.quant.gptq import Feedback, reversed_factor
from whet.quant.layer_pass import METHODS
from whet.quant.rounding import Grid, make_grid


def textbook(weight: Tensor, scale: Tensor, gram: Tensor) -> Tensor:
    """The paper's algorithm 1 in float64, one column at a time, from an explicit inverse."""
    order = gram.diagonal().argsort(descending=True)
    damped = gram.double()[order][:, order]
    damped += 0.01 * damped.diagonal().mean() * torch.eye(len(order), dtype=torch.float64)
    upper = torch.linalg.cholesky(damped.inverse(), upper=True)
    work, out = weight.double()[:, order], torch.zeros_like(weight, dtype=torch.float64)
    steps = scale.double().repeat_interleave(32, dim=1)[:, order]
    for j in range(len(order)):
        levels = (work[:, j] / steps[:, j]).round().clamp(-8, 7)
        out[:, j] = levels * steps[:, j]
        error = (work[:, j] - out[:, j]) / upper[j, j]
        work[:, j:] -= torch.outer(error, upper[j, j:])
    back = torch.empty_like(out)
    back[:, order] = out
    return back


def test_it_rounds_as_the_textbook_does() -> None:
    """160 columns, more than one block; a hair's breadth may tip a code, so few may differ."""
    torch.manual_seed(0)
    grid = make_grid("W4A16", 32, torch.float32)
    weight = torch.randn(40, 160)
    x = torch.randn(500, 80) @ torch.randn(80, 160) + 0.3 * torch.randn(500, 160)
    gram = x.T @ x / 500
    scale = grid.scales(weight)
    ours = Feedback(gram).round(weight, scale, grid)
    expected = textbook(weight, scale, gram)
    assert ((ours - expected).abs() > 1e-4).float().mean() < 0.01


def test_the_factor_is_that_of_the_inverse() -> None:
    torch.manual_seed(1)
    x = torch.randn(200, 48, dtype=torch.float64)
    gram = x.T @ x / 200
    order = torch.randperm(48)
    upper = reversed_factor(gram.float(), order).flip(0, 1).double()
    damped = gram + 0.01 * gram.diagonal().mean() * torch.eye(48, dtype=torch.float64)
    inverse = damped[order][:, order].inverse()
    torch.testing.assert_close(upper.T @ upper, inverse, rtol=1e-3, atol=1e-4)
    assert upper.tril(-1).abs().max() == 0


@pytest.mark.parametrize("scheme", ["W4A16", "W8A16", "W8A8"])
def test_what_it_stores_is_on_the_grid_and_better_than_nearest(scheme: str) -> None:
    weight, x = with_outliers(5)
    x = x @ (torch.eye(96) + 0.2 * torch.randn(96, 96))
    grid = make_grid(scheme, 32, torch.bfloat16)
    unit = problem(weight, x, grid=grid)
    fit = METHODS["gptq"]([[unit]])[0]
    torch.testing.assert_close(grid.round(fit.weight, fit.scale), fit.weight, rtol=1e-5, atol=1e-6)
    nearest = METHODS["rtn"]([[unit]])[0]
    assert replayed(weight, x, fit, grid) < 0.8 * replayed(weight, x, nearest, grid)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    dead=st.integers(0, 96),
    tokens=st.sampled_from([1, 7, 300]),
    peak=st.sampled_from([1.0, 1e4, 1e-4]),
    scheme=st.sampled_from(["W4A16", "W8A8"]),
)
def test_degenerate_inputs_and_weights_never_lose_to_nearest(
    seed: int, dead: int, tokens: int, peak: float, scheme: str
) -> None:
    torch.manual_seed(seed)
    grid: Grid = make_grid(scheme, 32, torch.bfloat16)
    weight, x = torch.randn(6, 96), torch.randn(tokens, 96)
    weight[0] = 0
    weight[:, 32:64] = 0
    x[:, :dead] = 0
    x[:, -1] *= peak
    unit = problem(weight, x, grid=grid)
    fit = METHODS["gptq"]([[unit]])[0]
    assert bool(torch.isfinite(fit.weight).all())
    nearest = METHODS["rtn"]([[unit]])[0]
    ours, theirs = replayed(weight, x, fit, grid), replayed(weight, x, nearest, grid)
    assert ours <= theirs * (1 + 1e-3) + 1e-9
