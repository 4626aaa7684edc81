"""``whet init`` and ``whet quantize`` for models of which some recipe cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint_factory import in_fp8, write_adapter, write_tiny_llama
from tests.cli.stage import Whet, write_spec
from tests.cli.test_init_from_log import write_log
from tests.flow.stage import SHORT
from whet.core.errors import CheckpointError, QuantizationError, UsageError
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


def test_a_folder_that_is_no_model_is_told_at_once(whet: Whet, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter", base_model_name_or_path="acme/base")
    (tmp_path / "renamed").mkdir()
    write_tiny_llama(tmp_path / "renamed")
    (tmp_path / "renamed" / "model.safetensors").write_bytes(b"GGUF" + bytes(99))
    for model, words in (("adapter", "an adapter of 'acme/base'"), ("renamed", "GGUF weights")):
        for command in (("init", "new.yaml", "--model", model), ("quantize", model, "out")):
            assert words in whet(*command).sentence(CheckpointError.exit_code)
    assert not (tmp_path / "new.yaml").exists()


def test_an_unknown_method_has_one_cause(whet: Whet, tmp_path: Path) -> None:
    claim = {"quant_method": "spinq", "bits": 3}
    write_tiny_llama(tmp_path / "target", quantization_config=claim)
    write_spec(tmp_path, model={"target": "./target"}, variants={"fp16": {}})
    said = [whet(*words).sentence(3) for words in (("check",), ("quantize", "./target", "out"))]
    assert said[0] == said[1]
    assert "quantized (spinq)" in said[0]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "1 s"),
        ("{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(messages) }}", "does not take its messages"),
    ],
    ids=["endless", "calls itself"],
)
def test_check_renders_a_chat(
    whet: Whet, tmp_path: Path, template: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.checkpoint.chat._RENDER_S", 1)
    write_tiny_llama(tmp_path / "target")
    (tmp_path / "target" / "chat_template.jinja").write_text(template)
    spec = {"model": {"target": "./target"}, "workload": SHORT, "variants": {"fp16": {}}}
    write_spec(tmp_path, **spec)
    said = whet("check", "--device", "H100 SXM").sentence(UsageError.exit_code)
    assert "chat template" in said
    assert words in said


def test_quantize_says_what_check_says(whet: Whet, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "odd", intermediate_size=320)
    said = whet("quantize", "./odd", "out")
    assert said.sentence(QuantizationError.exit_code).endswith(
        "has 320 inputs, not a multiple of the group size 128; use a recipe with method: gptq, "
        "scheme: W4A16, group_size: 64"
    )
