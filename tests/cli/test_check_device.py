"""``whet check --device``: a spec is planned for a machine that is not here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.checkpoint_factory import tiny_config, write_hollow, write_tokenizer
from tests.cli.stage import Whet, write_spec
from tests.flow.stage import SHORT
from whet.core.errors import InfeasibleError, UsageError

USAGE, INFEASIBLE = UsageError.exit_code, InfeasibleError.exit_code
SEVEN_B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}


def write_seven_b(folder: Path, **args: int) -> None:
    """A spec of a 7B shape without weights, which is all that a check reads of them."""
    write_hollow(folder / "big", tiny_config(write_tokenizer(folder / "big")) | SEVEN_B)
    write_spec(
        folder,
        model={"target": "./big"},
        engine={"args": {"max_model_len": 2048, **args}},
        workload={**SHORT, "max_input_tokens": 1900, "max_output_tokens": 100},
        load={"concurrency": [96]},
        variants={"fp16": {}, "fp16+cache": {"prefix_cache": True}},
    )


def test_what_fits_there_is_told_with_what_is_taken_for_granted(whet: Whet, pair: Path) -> None:
    write_seven_b(pair)
    said = whet("check", "--device", "h100 sxm", "--vllm", "0.26.0")
    assert said.code == 0, said.err
    first = " ".join(said.out.split())
    assert "ok run: 2 variants on H100 SXM, which is not here" in first
    assert "(taken for granted: vLLM 0.26.0 for CUDA)" in first


def test_what_does_not_fit_there_is_refused_before_the_machine_is_rented(
    whet: Whet, pair: Path
) -> None:
    """96 requests of 2,000 tokens at 131,072 bytes a token are 23 GiB beside 13 of weights."""
    write_seven_b(pair)
    assert whet("check", "--device", "H100 SXM").code == 0
    said = whet("check", "--device", "2x L4")
    assert said.code == INFEASIBLE
    assert "fp16, fp16+cache: " in said.err
    assert "tokens of KV cache fit" in said.err


def test_gpus_are_counted(whet: Whet, pair: Path) -> None:
    write_seven_b(pair, tensor_parallel_size=2)
    assert whet("check", "--device", "L40S").code == INFEASIBLE
    assert whet("check", "--device", "2x L40S").code == 0


def test_a_sentence_is_one_line_where_nobody_sees_a_terminal(
    whet: Whet, pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_seven_b(pair)
    monkeypatch.setenv("COLUMNS", "40")
    said = whet("check", "--device", "H200", "--quiet")
    (line,) = [line for line in said.err.splitlines() if "price_usd_per_hour" in line]
    assert line.startswith("! every variant: hardware.price_usd_per_hour is 1, and H200 costs")
    assert line.endswith("another machine")


def test_an_unknown_gpu_is_told_with_the_known_ones(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    said = whet("check", "--device", "Q7").sentence(USAGE)
    assert "(known: RTX 4090, RTX 5090, L4, A10G," in said


def test_a_version_without_a_machine(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    said = whet("check", "--vllm", "0.26.0").sentence(USAGE)
    assert "give --device too" in said


def test_a_server_that_somebody_else_runs_cannot_be_planned(whet: Whet, pair: Path) -> None:
    write_spec(pair, engine={"url": "http://127.0.0.1:1"}, variants={"fp16": {}})
    said = whet("check", "--device", "L4").sentence(USAGE)
    assert "leave engine.url out" in said


def test_what_is_slow_on_that_gpu_is_told(whet: Whet, pair: Path) -> None:
    write_seven_b(pair)
    file = pair / "whet.yaml"
    spec = yaml.safe_load(file.read_text(encoding="utf-8"))
    spec |= {"recipes": {"fp8": {"scheme": "FP8_DYNAMIC"}}}
    spec["variants"]["fp8"] = {"weights": "fp8"}
    file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    slow = "this GPU computes no FP8"
    assert slow in " ".join(whet("check", "--device", "A100 80GB SXM").err.split())
    assert slow not in " ".join(whet("check", "--device", "H100 SXM").out.split())


def test_the_verdict_and_what_the_run_takes_come_before_the_commands(
    whet: Whet, pair: Path
) -> None:
    write_seven_b(pair)
    words = ("check", "--device", "H100 SXM")
    short = whet(*words)
    first, second, *_ = short.out.strip().splitlines()
    assert first.startswith("ok run: 2 variants on H100 SXM")
    assert "server starts" in second
    assert "--max-model-len" not in short.out
    assert "whet check -v prints the command of each variant" in short.out
    assert whet(*words, "-v").out.count("--max-model-len 2048") == 2
