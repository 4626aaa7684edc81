"""What bad input gets: one sentence with the mend, the right exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint_factory import tiny_config, write_hollow, write_tokenizer
from tests.cli.stage import Whet, write_spec, write_whole_spec
from tests.flow.stage import FakeEngine
from whet.core.errors import (
    CheckpointError,
    InfeasibleError,
    NothingQualifiesError,
    StorageError,
    UsageError,
)
from whet.core.store import RunStore
from whet.demo import pair_paths

USAGE, CHECKPOINT = UsageError.exit_code, CheckpointError.exit_code
INFEASIBLE, STORAGE = InfeasibleError.exit_code, StorageError.exit_code

BEFORE_ANYTHING = {".lock", "progress.jsonl", "spec.yaml"}
"""Files of a run that preflight refuses."""


def test_a_library_that_comes_with_the_engine(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "whet.quant.layer_pass", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    done = whet("quantize", pair_paths()[0], "out")
    assert done.code == INFEASIBLE
    assert "error: torch is not installed\nfix: install it with vLLM" in done.err
    assert list(tmp_path.iterdir()) == []


# The spec file


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_missing_spec_file(whet: Whet, tmp_path: Path, command: str) -> None:
    said = whet(command, "gone.yaml").sentence(USAGE)
    assert said == (
        "no spec file at gone.yaml; write one with: whet init gone.yaml, or see it work first: "
        "whet demo"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: [", "not valid YAML at line"),
        ("only words", "write a fresh one with: whet init"),
        ("name: a\nmodle: {target: x}\n", "did you mean 'model'?"),
    ],
)
def test_a_spec_file_that_is_none(whet: Whet, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "whet.yaml").write_text(text)
    assert told in whet("run").sentence(USAGE)
    assert [path.name for path in tmp_path.iterdir()] == ["whet.yaml"]


def test_an_unknown_key(whet: Whet, tmp_path: Path) -> None:
    write_spec(tmp_path, load={"concurency": [1]})
    said = whet("run").sentence(USAGE)
    assert said == "unknown key 'concurency' in load; did you mean 'concurrency'?"
    assert not (tmp_path / "runs").exists()


def test_a_negative_batch_size_in_the_spec(whet: Whet, tmp_path: Path) -> None:
    write_spec(tmp_path, load={"concurrency": [4, -1]})
    said = whet("run").sentence(USAGE)
    assert said.startswith("load.concurrency.1: ")
    assert said.endswith("must be 1 or more (got -1)")
    assert not (tmp_path / "runs").exists()


def test_an_unknown_engine(whet: Whet, pair: Path) -> None:
    write_spec(pair, engine={"name": "vlm"})
    said = whet("check").sentence(USAGE)
    known = "(known: vllm, sglang, openai)"
    assert said.startswith(f"unknown engine 'vlm'; did you mean 'vllm'? {known}")
    assert "name openai, with its url" in said


# Words of the command line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sharpen"], 'Unknown command "sharpen"'),
        (["run", "--resum"], "--resume"),
        (["run", "--concurrency", "1,8"], "set it with --set load.concurrency=[1,8]"),
        (["run", "--batch-sizes", "1"], "set it with --set load.concurrency=[1,8]"),
        (["quantize", "a", "b", "--samples", "many"], "Invalid value for --samples"),
        (["report"], "whet report needs RUN_DIR"),
    ],
)
def test_words_that_no_command_has(whet: Whet, tmp_path: Path, words: list[str], told: str) -> None:
    said = whet(*words)
    assert said.code == USAGE
    assert told in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--group-size", "7", "--group-size: must be 32, 64 or 128 (got 7)"),
        (
            "--method",
            "gptk",
            "--method: must be 'awq', 'gptq', 'smoothquant', 'rtn' or 'auto' (got 'gptk')",
        ),
        ("--samples", "-3", "--samples takes a number from 0 to 10,000,000 (got -3)"),
    ],
)
def test_a_wrong_recipe_flag(whet: Whet, tmp_path: Path, flag: str, value: str, told: str) -> None:
    assert whet("quantize", "target", "out", flag, value).sentence(USAGE) == told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["run"], ["demo"]])
def test_a_name_that_would_leave_the_folder(whet: Whet, tmp_path: Path, command: list[str]) -> None:
    write_spec(tmp_path)
    said = whet(*command, "--name", "../x", "-o", "deep/runs").sentence(USAGE)
    assert "'../x' cannot be used as a folder name; use letters" in said
    assert not (tmp_path / "deep").exists()


# Checkpoints


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)


def make_pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
    (folder / "model.safetensors").write_text(text)


def remove(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


BROKEN = [
    (remove, "no checkpoint folder at {}; correct the path, or give a hub id (owner/name)"),
    (truncate, "file not fully covered); download the checkpoint again"),
    (make_pointer, "a git-LFS pointer, not the file itself; fetch it with: git -C {} lfs pull"),
]


@pytest.mark.parametrize(("spoil", "told"), BROKEN)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_checkpoint_that_cannot_be_read(
    whet: Whet, pair: Path, spoil: Callable[[Path], None], told: str, role: str
) -> None:
    write_spec(pair)
    spoil(pair / role)
    said = whet("check").sentence(CHECKPOINT)
    assert told.format(pair / role) in said
    assert not (pair / "runs").exists()


@pytest.mark.parametrize(("spoil", "told"), BROKEN)
def test_nothing_is_quantized_from_a_broken_checkpoint(
    whet: Whet, pair: Path, spoil: Callable[[Path], None], told: str
) -> None:
    spoil(pair / "target")
    before = set(pair.iterdir())
    said = whet("quantize", "./target", "out").sentence(CHECKPOINT)
    assert told.format("./target" if spoil is remove else pair / "target") in said
    assert set(pair.iterdir()) == before


def test_a_corrected_path_is_not_held_against_the_refused_run(
    whet: Whet, scripted: FakeEngine, tmp_path: Path
) -> None:
    write_whole_spec(tmp_path, model={"target": "./nowhere"})
    whet("run").sentence(CHECKPOINT)
    left = {path.name for path in (tmp_path / "runs" / "tiny").iterdir()}
    assert left <= BEFORE_ANYTHING
    write_whole_spec(tmp_path, load={"concurrency": [1], "trials": 1, "min_requests": 1})
    assert whet("run").code == NothingQualifiesError.exit_code
    assert scripted.started


# Preflight


def test_a_draft_with_two_tokens_swapped(whet: Whet, pair: Path) -> None:
    file = pair / "draft" / "tokenizer.json"
    data = json.loads(file.read_text())
    ids = data["model"]["vocab"]
    one, two = (next(token for token, i in ids.items() if i == wanted) for wanted in (290, 291))
    ids[one], ids[two] = 291, 290
    file.write_text(json.dumps(data))
    write_spec(pair)
    said = whet("check")
    assert said.code == INFEASIBLE
    assert "error: preflight found what cannot run here:\n" in said.err
    assert f"the id of token {one!r} is 290 in the target and 291 in the draft" in said.err
    assert "choose a draft made for this target" in said.err
    lines = said.err[said.err.index("error: ") :].splitlines()
    assert [line.split(":")[0] for line in lines[1:-1]] == ["  awq+draft+cache"]
    assert "--skip-infeasible" in lines[-1]
    assert "Traceback" not in said.err


def test_a_draft_with_one_token_renamed(whet: Whet, pair: Path) -> None:
    file = pair / "draft" / "tokenizer.json"
    data = json.loads(file.read_text())
    added = data["added_tokens"][1]
    data["model"]["vocab"]["<|stop|>"] = data["model"]["vocab"].pop(added["content"])
    added["content"] = "<|stop|>"
    file.write_text(json.dumps(data))
    write_spec(pair)
    said = whet("run")
    assert said.code == INFEASIBLE
    assert "the id of token '<|end|>' is 1 in the target and missing in the draft" in said.err
    assert {path.name for path in (pair / "runs" / "run").iterdir()} <= BEFORE_ANYTHING


def test_a_variant_that_cannot_fit(whet: Whet, pair: Path) -> None:
    shape = {"hidden_size": 8192, "intermediate_size": 2**20, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    config = tiny_config(write_tokenizer(pair / "huge")) | shape | heads
    write_hollow(pair / "huge", config)
    write_spec(pair, model={"target": "./huge"}, variants={"fp16": {}})
    said = whet("check")
    assert said.code == INFEASIBLE
    # By hand: a layer has 2·8192² + 2·8192·1024 + 3·8192·2²⁰ weights of 2 bytes; 32 layers.
    assert "fp16: weights (1.51 TiB)" in said.err
    assert "it needs 1.53 TiB" in said.err
    assert "use a larger device, or weights of fewer bits" in said.err
    assert "Traceback" not in said.err


# Data files


def test_calibration_without_text(whet: Whet, pair: Path) -> None:
    name = "none.jsonl"
    (pair / name).write_text('{"text": " "}\n{"other": 1}\n')
    before = set(pair.iterdir())
    said = whet("quantize", "target", "out", "--calibration", name).sentence(USAGE)
    assert said.startswith(f"the calibration file {name} has no usable text; give JSONL")
    assert set(pair.iterdir()) == before


def test_a_data_file_that_is_missing(whet: Whet, pair: Path) -> None:
    write_spec(pair, quality={"tasks": "gone.jsonl"})
    said = whet("check").sentence(USAGE)
    assert said == (
        f"quality.tasks: no file at {pair / 'gone.jsonl'}; correct the path or leave the key out"
    )


# The run directory


def test_a_run_directory_that_is_filled(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    with RunStore.open(pair / "runs" / "run") as store:
        store.note("trials", "one", status="complete")
    journal = (pair / "runs" / "run" / "journal.jsonl").read_bytes()
    said = whet("run").sentence(STORAGE)
    assert said == "runs/run already holds a run; go on with --resume, or choose another --name"
    assert (pair / "runs" / "run" / "journal.jsonl").read_bytes() == journal


def test_a_run_directory_in_use(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    with RunStore.open(pair / "runs" / "run"):
        said = whet("run", "--resume").sentence(STORAGE)
    assert said == "runs/run is in use by another whet; wait for it or end it"


def test_an_output_folder_that_is_a_file(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    (pair / "file").write_text("")
    assert "cannot write file/run" in whet("run", "-o", "file").sentence(STORAGE)


@pytest.mark.parametrize("command", ["report", "decide"])
def test_a_folder_without_a_run(whet: Whet, tmp_path: Path, command: str) -> None:
    said = whet(command, tmp_path).sentence(STORAGE)
    assert said.endswith("holds no run (no journal.jsonl); name a folder that whet run made")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "one.json").write_text('{"variant": "fp1')
    entry = {"kind": "trials", "key": "one", "status": "complete"}
    (tmp_path / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    said = whet("report", tmp_path).sentence(STORAGE)
    assert said.startswith(f"{tmp_path / 'trials' / 'one.json'} is damaged")


# What the spec alone shows


def test_wrong_flags_name_their_variants_and_come_with_every_other_problem(
    whet: Whet, pair: Path
) -> None:
    variants = {
        "fp16": {"args": {"max_model_len": 4096}},
        "a": {"args": {"max_modle_len": 512, "api_key": "x"}},
        "b": {"args": {"no_such_flag": 1}},
        "c": {"args": {"no_such_flag": 2}},
    }
    write_spec(pair, variants=variants, engine={"args": {}})
    said = whet("check")
    assert said.code == USAGE
    lines = said.err.splitlines()
    assert lines[0] == "error: the spec cannot run:"
    assert lines[1].startswith("  a: engine flag 'api_key' cannot be set here")
    assert "vLLM has no flag 'max_modle_len'; did you mean 'max_model_len'?" in lines[1]
    assert lines[2].startswith("  b, c: vLLM has no flag 'no_such_flag'")
    assert any(
        line.startswith("  fp16: max_model_len 4096 is beyond the model's") for line in lines
    )


@pytest.mark.parametrize("command", ["check", "run"])
def test_prompts_that_leave_no_room_are_refused_before_a_server_starts(
    whet: Whet, pair: Path, scripted: FakeEngine, command: str
) -> None:
    write_spec(pair, workload={"max_input_tokens": 40, "max_output_tokens": 16})
    said = whet(command)
    assert said.code == USAGE
    assert "error: run: workload.max_input_tokens is 40, but a built-in system prompt" in said.err
    assert scripted.started == []
