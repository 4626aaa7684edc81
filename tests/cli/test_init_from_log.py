"""``whet init --traffic``: a spec from a log, a checkpoint on the hub and a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
from tests.cli.stage import Whet
from tests.cli.test_check_device import SEVEN_B
from tests.model_hub import Model, ModelHub, model_hub
from whet.core.errors import CheckpointError, InfeasibleError, UsageError
from whet.core.spec import load_spec

NAME = "owner/Name-7B"
H100 = ("--device", "H100 SXM")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    with model_hub(monkeypatch, tmp_path / "cache") as running:
        folder = tmp_path / "hub"
        write_hollow(folder, tiny_config(write_tokenizer(folder)) | SEVEN_B)
        running.models[NAME] = Model(folder)
        yield running


def write_log(path: Path, requests: int = 1500, *, timed: bool = True, **change: Any) -> Path:
    """Questions behind two system prompts; 2 a second, 6 a second for the last tenth."""
    rng = np.random.default_rng(3)
    at, lines = 1_760_000_000.0, []
    for number in range(requests):
        at += rng.exponential(1 / (6 if number > 0.9 * requests else 2))
        system = f"You are the desk {number % 2}. " * 10
        user = f"Where is the order {number} that I paid for in {1900 + number}?"
        answer = {"message": {"role": "assistant", "content": "It is on its way to you."}}
        line: dict[str, Any] = {
            "request": {
                "model": "other",
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": user},
                ],
            },
            "response": {"choices": [answer], "usage": {"completion_tokens": 5 + number % 40}},
        }
        lines.append(line | ({"timestamp": at} if timed else {}) | change)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_spec_comes_from_the_log_the_model_and_the_device(
    whet: Whet, hub: ModelHub, tmp_path: Path
) -> None:
    write_log(tmp_path / "log.jsonl")
    said = whet("init", "--model", NAME, "--traffic", "log.jsonl", *H100)
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) <= 15
    assert "log.jsonl: 1,500 requests in 11 min" in said.out
    assert "Not in the log: your latency limits" in said.out
    assert "whet prompts" not in said.out, "its prompts begin alike"
    assert said.out.endswith("whet check whet.yaml --device 'H100 SXM', then: whet run whet.yaml\n")
    assert hub.sent_bytes < (hub.models[NAME].folder / "model.safetensors").stat().st_size / 100
    spec = load_spec(tmp_path / "whet.yaml")
    assert (spec.name, spec.model.target) == ("name-7b", NAME)
    assert spec.model.revision == hub.models[NAME].commit
    assert spec.traffic is not None
    assert spec.traffic.log == tmp_path / "log.jsonl"
    assert spec.load.find == "max_rate"
    assert spec.load.demand_rps == pytest.approx(2.2, abs=0.4)
    assert (list(spec.variants), spec.baseline, spec.reference) == (["default"], "default", None)
    assert spec.search is not None
    assert (spec.search.time, spec.search.heads) == (1800, ())
    text = (tmp_path / "whet.yaml").read_text()
    assert "variants" not in text
    assert "objective:\n  # limits of the time to first token" in text
    assert spec.objective == type(spec.objective)()
    assert "recipes" not in text
    assert "  # for everything: quantizing," in text
    checked = whet("check", *H100)
    assert (checked.code, checked.err) == (0, ""), checked.err


def test_a_log_without_times_has_requests_in_flight(
    whet: Whet, hub: ModelHub, tmp_path: Path
) -> None:
    write_log(tmp_path / "log.jsonl", timed=False)
    said = whet("init", "--model", NAME, "--traffic", "log.jsonl", "--device", "2x L4")
    assert said.code == 0, said.err
    assert load_spec(tmp_path / "whet.yaml").load.find is None
    assert "when requests come (it has no times)" in said.out
    assert whet("check", "--device", "2x L4").code == 0


@pytest.mark.full
def test_several_cards_where_one_is_too_small(whet: Whet, hub: ModelHub, tmp_path: Path) -> None:
    """16 bits of 36 layers of twice the width need more than one L4."""
    folder = tmp_path / "wide"
    write_hollow(folder, tiny_config(write_tokenizer(folder)) | SEVEN_B | {"num_hidden_layers": 60})
    hub.models[NAME] = Model(folder)
    write_log(tmp_path / "log.jsonl")
    words = ("init", "--model", NAME, "--traffic", "log.jsonl", "--device")
    sentence = whet(*words, "L4")
    assert sentence.code == InfeasibleError.exit_code
    assert "use a larger device" in sentence.err
    assert not (tmp_path / "whet.yaml").exists()
    assert whet(*words, "4x L4").code == 0
    data = yaml.safe_load((tmp_path / "whet.yaml").read_text())
    assert data["engine"]["args"]["tensor_parallel_size"] == 2
    assert data["hardware"]["price_usd_per_hour"] == pytest.approx(1.6)


def test_a_time_a_draft_heads_and_checkpoints_are_those_of_the_search(
    whet: Whet, hub: ModelHub, tmp_path: Path
) -> None:
    target = write_tiny_llama(tmp_path / "target")
    write_log(tmp_path / "log.jsonl")
    in_fp8(tmp_path / "fp8")
    write_head(tmp_path / "head")
    hub.models["owner/head"] = Model(tmp_path / "head")
    words = ("--head", "./head", "--head", "owner/head", "--checkpoint", "fp8", "--time", "2h")
    said = whet("init", "--model", target, "--traffic", "log.jsonl", *H100, *words)
    assert said.code == 0, said.err
    assert "2h of search" in said.out
    search = load_spec(tmp_path / "whet.yaml").search
    assert search is not None
    assert search.time == 7200
    assert search.heads == (str(tmp_path / "head"), "owner/head")
    assert search.checkpoints == (str(tmp_path / "fp8"),)


def test_this_machine_is_the_default(whet: Whet, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "target")
    write_log(tmp_path / "log.jsonl", timed=False)
    said = whet("init", "--model", "./target", "--traffic", "log.jsonl")
    assert said.code == 0, said.err
    spec = load_spec(tmp_path / "whet.yaml")
    assert spec.model.target == str(tmp_path / "target")
    assert whet("check").code == 0


def test_a_log_without_answers_has_them_measured(whet: Whet, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "target")
    write_log(tmp_path / "log.jsonl", response=None)
    said = whet("init", "--model", "./target", "--traffic", "log.jsonl")
    assert said.code == 0, said.err
    spec = load_spec(tmp_path / "whet.yaml")
    assert spec.traffic is not None
    assert spec.traffic.answers == "natural"


@pytest.mark.parametrize(
    ("words", "requests", "code", "sentence"),
    [
        (["--model", "owner/Nmae"], 1500, CheckpointError.exit_code, "owner/Nmae"),
        (["--model", NAME], 3, UsageError.exit_code, "give a log of 80 requests or more"),
        (["--model", NAME, "--time", "soon"], 1500, UsageError.exit_code, "search.time"),
        (["--model", NAME, "--head", "./gone"], 1500, CheckpointError.exit_code, "search.heads"),
        (["--model", NAME, "--device", "H1OO"], 1500, UsageError.exit_code, "no GPU is known"),
        (["--model", NAME, "--traffic", "lgo.jsonl"], 9, UsageError.exit_code, "lgo.jsonl"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    whet: Whet,
    hub: ModelHub,
    tmp_path: Path,
    *,
    words: list[str],
    requests: int,
    code: int,
    sentence: str,
) -> None:
    write_log(tmp_path / "log.jsonl", requests)
    own = [] if "--traffic" in words else ["--traffic", "log.jsonl"]
    device = [] if "--device" in words else H100
    assert sentence in whet("init", *words, *own, *device).sentence(code)
    assert not (tmp_path / "whet.yaml").exists()


def test_a_redacted_log_makes_no_spec(whet: Whet, hub: ModelHub, tmp_path: Path) -> None:
    usage = {"usage": {"prompt_tokens": 824, "completion_tokens": 9}}
    gone = {"messages": [{"role": "user", "content": "[redacted]"}]}
    write_log(tmp_path / "log.jsonl", 120, request=gone, response=usage)
    said = whet("init", "--model", NAME, "--traffic", "log.jsonl", *H100)
    assert "says 824 tokens per prompt and its text has 10 bytes" in said.sentence(2)
    assert not (tmp_path / "whet.yaml").exists()


def test_heads_need_a_log(whet: Whet) -> None:
    said = whet("init", "--head", "./head").sentence(UsageError.exit_code)
    assert "give --traffic LOG too" in said


def test_a_log_whose_prompts_begin_with_a_time_is_told_what_a_fix_would_bring(
    whet: Whet, hub: ModelHub, tmp_path: Path
) -> None:
    path = write_log(tmp_path / "log.jsonl", 400)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines):
        first = line["request"]["messages"][0]
        stamp = f"2026-10-09 {number // 60 % 24:02d}:{number % 60:02d}:07"
        first["content"] = f"Now: {stamp}. You answer questions about orders. " + "Be kind. " * 90
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = whet("init", "--model", NAME, "--traffic", "log.jsonl", *H100)
    assert said.code == 0, said.err
    (hint,) = [line for line in said.out.splitlines() if "whet prompts would make it" in line]
    assert "date or time early in prompts" in hint
    assert float(hint.split("it ")[1].split("%")[0]) > 50
