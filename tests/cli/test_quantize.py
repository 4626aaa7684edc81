"""``whet quantize``: flags that go together, and those that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import Whet
from tests.hub_standin import TOKEN, hub_standin
from whet.core.errors import UsageError, WhetError
from whet.engines.process import free_port

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
        ("--scheme NF4", "--scheme: Input should be 'W4A16', 'W4A16_ASYM', 'W8A16', "),
        ("--scheme FP8 --method awq", "FP8 is made by rtn, not by awq"),
        ("--method hqq", "--method: Input should be 'awq', 'gptq', 'awq+gptq', 'smoothquant', "),
        (
            "--scheme FP8 --group-size 64",
            "--group-size has no meaning for FP8, whose groups are given; leave it out, or choose "
            "--scheme W4A16, W4A16_ASYM, W8A16",
        ),
        ("--writer autoawq", "--writer: Input should be 'whet', 'llm-compressor' or 'llama.cpp'"),
        (
            "--scheme NVFP4 --no-clip",
            "llm-compressor, which writes this recipe, makes no clip: false",
        ),
        ("--scheme NVFP4", "WHET_LLM_COMPRESSOR does not name the Python of one; python3 -m venv"),
        ("--method gptq --no-clip", "--no-clip has no meaning for gptq, which does not clip"),
        ("--kv-cache int8", "--kv-cache: Input should be 'fp8' (got 'int8')"),
        (
            "--scheme W8A8 --bits-per-weight 9",
            "mixed keeps units above 4 bits, and W8A8 is 8 already",
        ),
        ("--bits-per-weight 17", "--bits-per-weight: Input should be less than or equal to 16"),
        ("--seed x", "Invalid value for --seed"),
        ("--private", "Unknown option: --private"),
        ("--public", "--public says how to upload; add --push-to-hub REPO"),
    ],
)
def test_flags_that_cannot_be(
    whet: Whet, model: Path, flags: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHET_LLM_COMPRESSOR", raising=False)
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


def test_a_push_that_cannot_be_is_refused_before_any_work(
    whet: Whet, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    said = whet("quantize", model, "out", "--push-to-hub", "me/../it").sentence(USAGE)
    assert said.startswith("the hub refused the upload to me/../it (Repo id must be in the form")
    assert not Path("out").exists()


@pytest.mark.parametrize("flags", [[], ["--public"]])
def test_a_checkpoint_is_pushed_to_a_private_repository_unless_public_is_given(
    whet: Whet,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flags: list[str],
) -> None:
    with hub_standin() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        words = ["--method", "rtn", "--push-to-hub", "alice/tiny", *flags]
        said = whet("quantize", model, "out", *words)
    assert said.code == 0, said.err
    assert "alice/tiny" in said.out
    sent = hub.repos["alice/tiny"]
    assert sent.private is (not flags)
    assert sent.files["model.safetensors"] == (tmp_path / "out/model.safetensors").read_bytes()


def test_an_unreachable_hub_is_reported_before_a_checkpoint_is_made(
    whet: Whet, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    words = ["--method", "rtn", "--push-to-hub", "alice/tiny"]
    said = whet("quantize", model, "out", *words).sentence(WhetError.exit_code)
    assert said.startswith("the upload to alice/tiny failed (")
    assert "check the network and HF_ENDPOINT" in said
    assert not Path("out").exists()


@pytest.mark.parametrize("flag", ["--compare", "--compare=true", "--no-tasks --compare"])
def test_the_removed_comparison_names_its_successor(whet: Whet, model: Path, flag: str) -> None:
    said = whet("quantize", model, "out", *flag.split()).sentence(USAGE)
    assert said.startswith("whet quantize --compare is now a run: write preset: schemes")
    assert not Path("out").exists()
