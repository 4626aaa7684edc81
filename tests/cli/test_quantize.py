"""``whet quantize``: flags that go together, and those that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import Whet
from whet.core.errors import UsageError

USAGE = UsageError.exit_code


@pytest.fixture
def model(tmp_path: Path) -> Path:
    lines = [json.dumps({"text": f"the order {i} was shipped on monday"}) for i in range(8)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    return write_tiny_llama(tmp_path / "model")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--scheme W8A8 --method awq", "W8A8 is made by smoothquant, gptq, rtn, not by awq"),
        ("--scheme W8A8 --method auto", "W8A8 is made by smoothquant, gptq, rtn, not by auto"),
        ("--scheme NF4", "--scheme: must be 'W4A16', 'W8A16', 'W8A8', "),
        ("--scheme FP8 --method awq", "FP8 is made by rtn, not by awq"),
        ("--method hqq", "--method: must be 'awq', 'gptq', 'smoothquant', 'rtn' or 'auto'"),
        (
            "--scheme FP8 --group-size 64",
            "--group-size has no meaning for FP8, whose groups are given; leave it out, or choose "
            "--scheme W4A16, W8A16",
        ),
        ("--scheme NVFP4", "--scheme: whet does not write it; make it with llm-compressor and"),
        ("--kv-cache int8", "--kv-cache: must be 'fp8' (got 'int8')"),
        (
            "--scheme W8A8 --bits-per-weight 9",
            "mixed keeps units above 4 bits, and W8A8 is 8 already",
        ),
        ("--bits-per-weight 17", "--bits-per-weight: must be 16 or less"),
        ("--seed x", "Invalid value for --seed"),
        ("--private", "Unknown option: --private"),
        ("--push-to-hub me/it", "upload the folder with hf upload OWNER/NAME OUT"),
    ],
)
def test_flags_that_cannot_be(whet: Whet, model: Path, flags: str, told: str) -> None:
    said = whet("quantize", model, "out", *flags.split())
    assert told in said.sentence(USAGE)
    left = {path.name for path in Path("out").iterdir()} if Path("out").exists() else set()
    assert left <= {".lock"}


def test_one_checkpoint(whet: Whet, model: Path) -> None:
    words = ["--scheme", "W8A8", "--method", "rtn", "--device", "cpu"]
    said = whet("quantize", model, "out", *words)
    assert said.code == 0, said.err
    assert "rtn W8A8" in said.out
    assert "bits a weight" in said.out
    config = json.loads(Path("out/config.json").read_text())
    assert config["quantization_config"]["format"] == "int-quantized"


def test_the_method_that_was_chosen_is_said(whet: Whet, model: Path) -> None:
    words = ["--method", "auto", "--group-size", "64", "--device", "cpu", "--samples", "16"]
    said = whet("quantize", model, "out", *words)
    assert said.code == 0, said.err
    assert "auto W4A16 g64" in said.out
    assert "KL to 16 bit" in said.out
    assert "held-out documents" in said.out


@pytest.mark.parametrize("flag", ["--compare", "--compare=true", "--no-tasks --compare"])
def test_the_removed_comparison_names_its_successor(whet: Whet, model: Path, flag: str) -> None:
    said = whet("quantize", model, "out", *flag.split()).sentence(USAGE)
    assert said.startswith("whet quantize --compare is not supported; write preset: schemes")
    assert not Path("out").exists()
