"""The forms that gpt-oss and DeepSeek arrive in, against the libraries that read them."""

import torch
from benchmarks import tiny_stored
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def test_experts_in_4_bits_are_what_transformers_reads() -> None:
    torch.manual_seed(0)
    weight = torch.randn(2, 64, 32).to(torch.bfloat16)
    parts, plain = tiny_stored._mxfp4(EXPERTS, weight)
    read = convert_moe_packed_tensors(parts[f"{EXPERTS}_blocks"], parts[f"{EXPERTS}_scales"])
    assert torch.equal(read, plain)
    assert 0.05 < float((plain - weight).norm() / weight.norm()) < 0.2


def test_blocks_that_do_not_fill_the_matrix_have_a_scale_of_their_own() -> None:
    """DeepSeek's kv_a_proj_with_mqa has 576 rows: five blocks."""
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    torch.manual_seed(0)
    weight = torch.randn(576, 256)
    weight[512:] *= 100
    parts, plain = tiny_stored._fp8_block(name, weight)
    scales = parts[f"{name}_scale_inv"]
    assert scales.shape == (5, 2)
    assert float(scales[4].min()) > 50 * float(scales[:4].max())
    # E4M3 has three bits after the point: half a step is 1/16 of the value.
    torch.testing.assert_close(plain, weight, rtol=1 / 16, atol=2e-3)
