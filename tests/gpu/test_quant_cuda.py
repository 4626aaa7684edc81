"""The quantizer's CUDA paths give what its CPU paths give. Skipped where there is no GPU."""

import pytest
import torch

from whet.quant.coordinate_descent import group_products
from whet.quant.gptq import Feedback
from whet.quant.gram import InputMeter, row_errors
from whet.quant.rounding import make_grid

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("scheme", ["W4A16", "W8A8"])
def test_feedback_rounds_as_on_a_cpu(scheme: str) -> None:
    """Rows that do not fill a program, columns that do not fill a block; a hair may tip a code."""
    torch.manual_seed(0)
    grid = make_grid(scheme, 32, torch.bfloat16)
    weight, x = torch.randn(1003, 352), torch.randn(3000, 352) @ torch.randn(352, 352)
    gram = x.T @ x / 3000
    scale = grid.scales(weight)
    expected = Feedback(gram).round(weight, scale, grid)
    result = Feedback(gram.cuda()).round(weight.cuda(), scale.cuda(), grid).cpu()
    errors = [float(row_errors(item - weight, gram).sum()) for item in (result, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)
    nearest = float(row_errors(grid.round(weight, scale) - weight, gram).sum())
    assert errors[0] < 0.7 * nearest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_products_are_added_up_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(5000, 1100).to(dtype)
    meter = InputMeter(torch.device("cuda"))
    for part in x.cuda().split(777):
        meter.add(part)
    whole = x.double().T @ x.double() / 5000
    result = meter.finish("x").gram.cpu().double()
    assert float((result - whole).norm() / whole.norm()) < 1e-4


@pytest.mark.parametrize("size", [32, 64, 128, 384])
def test_products_of_groups_are_those_of_a_cpu(size: int) -> None:
    """Rows that do not fill a program; a size that has no kernel."""
    torch.manual_seed(3)
    levels = torch.randint(-8, 8, (1003, 384 // size, size)).float()
    x = torch.randn(900, 384) @ torch.randn(384, 384)
    gram = x.T @ x / 900
    expected = group_products(levels, gram).tril()
    result = group_products(levels.cuda(), gram.cuda()).cpu().tril()
    assert float((result - expected).norm() / expected.norm()) < 1e-3
