"""``whet init`` and ``whet quantize`` for models of which some recipe cannot be made."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoint_factory import in_fp8, write_tiny_llama
from tests.cli.stage import Whet
from tests.cli.test_init_from_log import write_log
from whet.core.errors import QuantizationError
from whet.core.spec import load_spec

CARD = ("--traffic", "log.jsonl", "--device", "H100 SXM")


def test_a_quantized_model_is_measured_as_stored(whet: Whet, tmp_path: Path) -> None:
    in_fp8(tmp_path / "model")
    write_log(tmp_path / "log.jsonl")
    said = whet("init", "--model", "./model", *CARD)
    assert said.code == 0, said.err
    assert "it is quantized already (FP8_BLOCK): measured as stored; moves of weights" in said.out
    spec = load_spec(tmp_path / "whet.yaml")
    assert (spec.baseline, list(spec.variants)) == ("default", ["default"])
    checked = whet("check", "--device", "H100 SXM")
    assert (checked.code, checked.err) == (0, "")
    assert "the baseline is the target as stored (FP8_BLOCK), not in 16 bit" in checked.out


def test_quantize_says_what_check_says(whet: Whet, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "odd", intermediate_size=320)
    said = whet("quantize", "./odd", "out")
    assert said.sentence(QuantizationError.exit_code).endswith(
        "has 320 inputs, not a multiple of the group size 128; use a recipe with method: gptq, "
        "scheme: W4A16, group_size: 64"
    )
