"""The Gram matrix says what running the layer would say."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whet.core.errors import QuantizationError
from whet.quant.gram import InputMeter, diagonal_blocks, output_error

CPU = torch.device("cpu")


@settings(max_examples=25, deadline=None)
@example(tokens=1, inputs=68, outputs=1, seed=0)  # a sum whose terms cancel to a thousandth
@given(
    tokens=st.integers(1, 300),
    inputs=st.integers(1, 90),
    outputs=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_the_objective_equals_the_replayed_one(
    tokens: int, inputs: int, outputs: int, seed: int
) -> None:
    """To 1e-5 of itself; where terms cancel, float32 knows it to its ε of their magnitudes."""
    torch.manual_seed(seed)
    x, delta = torch.randn(tokens, inputs), torch.randn(outputs, inputs)
    meter = InputMeter(CPU)
    for part in x.split(64):
        meter.add(part)
    replayed = float((x.double() @ delta.double().T).square().sum()) / tokens
    terms = float((x.double().abs() @ delta.double().abs().T).square().sum()) / tokens
    told = output_error(delta, meter.finish("x").gram)
    assert told == pytest.approx(replayed, rel=1e-5, abs=torch.finfo(torch.float32).eps * terms)


def test_the_symmetric_shortcut_fills_the_whole_matrix() -> None:
    """Wider than one column block, so that mirrored parts exist."""
    torch.manual_seed(0)
    x = torch.randn(64, 1100)
    meter = InputMeter(CPU)
    meter.add(x)
    whole = x.double().T @ x.double() / 64
    torch.testing.assert_close(meter.finish("x").gram.double(), whole, rtol=1e-4, atol=1e-5)


def test_outliers_of_1e4_beside_ordinary_channels_keep_their_figures() -> None:
    torch.manual_seed(1)
    x = torch.randn(5000, 8)
    x[:, 2] *= 1e4
    meter = InputMeter(CPU)
    meter.add(x)
    delta = torch.zeros(1, 8)
    delta[0, 5] = 1.0
    small = float(x[:, 5].double().square().mean())
    assert output_error(delta, meter.finish("x").gram) == pytest.approx(small, rel=1e-4)


def test_half_precision_inputs_are_summed_in_float32() -> None:
    """70,000 ones overflow float16 (65,504) and stop growing at 256 in bfloat16."""
    for dtype in (torch.float16, torch.bfloat16):
        meter = InputMeter(CPU)
        meter.add(torch.ones(70_000, 2, dtype=dtype))
        assert meter.finish("x").gram.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_an_activation_that_is_not_finite_is_named() -> None:
    meter = InputMeter(CPU)
    meter.add(torch.tensor([[1.0, float("nan"), 0.0, 1.0]]))
    with pytest.raises(QuantizationError, match=r"layers\.3\.qkv are not finite"):
        meter.finish("layers.3.qkv")


def test_diagonal_blocks_by_hand() -> None:
    gram = torch.arange(16.0).view(4, 4)
    assert diagonal_blocks(gram, 2).tolist() == [[[0, 1], [4, 5]], [[10, 11], [14, 15]]]
