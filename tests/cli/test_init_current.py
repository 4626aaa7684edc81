"""``whet init --current``: the present command is the configuration to beat."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.checkpoint.test_heads import write_head
from tests.checkpoint_factory import (
    in_fp8,
    tiny_config,
    write_hollow,
    write_tiny_llama,
    write_tokenizer,
)
from tests.cli.stage import Said, Whet
from tests.cli.test_check_device import SEVEN_B
from tests.cli.test_init_from_log import write_log
from whet.core.errors import CheckpointError, InfeasibleError, UsageError
from whet.core.spec import load_spec

CARD = ("--traffic", "log.jsonl", "--device", "H100 SXM")
USAGE, CHECKPOINT = UsageError.exit_code, CheckpointError.exit_code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "model", max_position_embeddings=4096)
    write_log(tmp_path / "log.jsonl", 400)
    return tmp_path


def init(whet: Whet, command: str, *words: str) -> Said:
    return whet("init", *CARD, "--current", command, *words)


def test_the_command_is_the_variant_that_savings_are_against(whet: Whet, folder: Path) -> None:
    write_head(folder / "head", max_position_embeddings=4096)
    speculation = '{"model": "./head", "num_speculative_tokens": 3}'
    said = init(
        whet,
        "VLLM_USE_RUST_FRONTEND=1 HF_TOKEN=hf_abcdefgh123 vllm serve ./model --host 0.0.0.0 "
        f"--api-key sk-12345678901234567890 --seed 7 --speculative-config '{speculation}' "
        "--no-enable-prefix-caching",
    )
    assert said.code == 0, said.err
    assert "savings are against your present command" in said.out
    assert "left out of the present command: api_key, host, HF_TOKEN" in said.out
    text = (folder / "whet.yaml").read_text()
    assert "  # your present command\n  current: {" in text.replace("current:\n", "current: {\n")
    assert "hf_abc" not in text + said.out
    assert "sk-1234" not in text + said.out
    spec = load_spec(folder / "whet.yaml")
    assert (spec.reference, list(spec.variants)) == ("current", ["default", "current"])
    assert spec.model.target == str(folder / "model")
    current = spec.variants["current"]
    assert (current.prefix_cache, current.args) == (False, {"seed": 7})
    assert current.env == {"VLLM_USE_RUST_FRONTEND": "1"}
    assert current.speculation is not None
    assert current.speculation.method == "eagle3"
    assert current.speculation.draft == str(folder / "head")
    assert current.weights == "16bit"
    checked = whet("check", "--device", "H100 SXM")
    assert checked.code == 0, checked.err


def test_quantized_weights_of_the_model_are_the_variants_own(whet: Whet, folder: Path) -> None:
    write_hollow(
        folder / "whole",
        tiny_config(write_tokenizer(folder / "whole")) | {"max_position_embeddings": 4096},
    )
    in_fp8(folder / "fp8")
    said = init(whet, "vllm serve fp8", "--model", "./whole")
    assert said.code == 0, said.err
    spec = load_spec(folder / "whet.yaml")
    assert spec.variants["current"].weights == str(folder / "fp8")
    assert spec.model.target == str(folder / "whole")
    (folder / "whet.yaml").unlink()
    said = init(whet, "vllm serve ./fp8")
    assert said.code == 0, said.err
    assert "moves of weights need the 16-bit checkpoint (--model)" in said.out
    assert load_spec(folder / "whet.yaml").variants["current"].weights == "16bit"


def test_a_command_for_shorter_requests_takes_those_of_the_log(whet: Whet, folder: Path) -> None:
    said = init(whet, "vllm serve ./model --max-model-len 64")
    assert said.code == 0, said.err
    data = yaml.safe_load((folder / "whet.yaml").read_text())
    length = data["engine"]["args"]["max_model_len"]
    assert data["variants"]["current"]["args"] == {"max_model_len": length}
    assert f"max_model_len 64 of the present command is raised to {length:,}" in said.out


def test_a_compose_file_is_read_as_the_command(whet: Whet, folder: Path) -> None:
    service = {"image": "vllm/vllm-openai", "command": ["--model", "./model", "--seed", "7"]}
    (folder / "compose.yaml").write_text(yaml.safe_dump({"services": {"llm": service}}))
    said = init(whet, "compose.yaml")
    assert said.code == 0, said.err
    assert load_spec(folder / "whet.yaml").variants["current"].args == {"seed": 7}


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("ollama run x", USAGE, "starts no vLLM server; give the line that starts vLLM"),
        ("gone.yaml", USAGE, "no file at gone.yaml"),
        ("vllm serve $MODEL", USAGE, "has a shell variable in model"),
        ("vllm serve ./gone", CHECKPOINT, "no checkpoint folder at ./gone"),
        ("vllm serve ./model --max-modle-len 8", USAGE, "vLLM has no flag 'max_modle_len'"),
        ("vllm serve ./other", USAGE, "the present command: it serves another model than --model"),
        (
            "vllm serve ./model -tp 8",
            InfeasibleError.exit_code,
            "current: tensor_parallel_size 8 needs 8 devices and 1 are visible",
        ),
    ],
)
def test_a_command_that_cannot_be_beaten_is_one_sentence(
    whet: Whet, folder: Path, command: str, code: int, sentence: str
) -> None:
    write_hollow(folder / "other", tiny_config(write_tokenizer(folder / "other")) | SEVEN_B)
    said = init(whet, command, "--model", "./model")
    assert said.code == code, said.err
    assert sentence in " ".join(said.err.split()).replace("fix: ", "; ").replace(" ; ", "; ")
    assert "Traceback" not in said.err
    assert not (folder / "whet.yaml").exists()


def test_it_needs_a_log(whet: Whet) -> None:
    said = whet("init", "--current", "vllm serve ./model").sentence(USAGE)
    assert said == "--current is for a spec from your log; give --traffic LOG too"
