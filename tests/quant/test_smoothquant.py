"""Outliers that would coarsen every token's 8-bit grid move into the weights."""

import torch

from tests.quant.test_awq import problem, with_outliers
from whet.quant.layer_pass import METHODS
from whet.quant.rounding import make_grid
from whet.quant.smoothquant import round_tokens
from whet.quant.unit import UnitFit

INT8 = make_grid("W8A8", 32, torch.bfloat16)


def replayed(weight: torch.Tensor, x: torch.Tensor, fit: UnitFit) -> float:
    """Inputs and weights rounded as an engine rounds them; the library's own rounding of inputs."""
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    smooth = x / fit.column_scale
    step = smooth.abs().amax(dim=1, keepdim=True) / 127.5
    rounded = fake_quantize(smooth, step, None, INT8.scheme.input_activations)
    answer = rounded.double() @ INT8.round(fit.weight, fit.scale).double().T
    return float((answer - x.double() @ weight.double().T).square().sum())


def test_outlier_channels_lose_less_than_without_smoothing() -> None:
    for seed in range(3):
        weight, x = with_outliers(seed)
        unit = problem(weight, x, grid=INT8)
        fit = METHODS["smoothquant"]([[unit]])[0]
        assert fit.ratio
        assert replayed(weight, x, fit) < 0.5 * replayed(weight, x, METHODS["rtn"]([[unit]])[0])


def test_nothing_to_absorb_a_scale_means_no_scale() -> None:
    weight, x = with_outliers(1)
    fit = METHODS["smoothquant"]([[problem(weight, x, folds=False, grid=INT8)]])[0]
    assert fit.ratio is None
    assert torch.equal(fit.weight, weight)


def test_tokens_are_rounded_each_on_its_own_grid() -> None:
    x = torch.tensor([[127.0, 1.4, -3.6], [1.27, 0.014, 0.0]])
    expected = torch.tensor([[127.0, 1.0, -4.0], [1.27, 0.01, 0.0]])
    torch.testing.assert_close(round_tokens(x), expected)
    assert round_tokens(torch.zeros(2, 3)).abs().max() == 0
