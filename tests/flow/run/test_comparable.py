"""Runs of two machines are decided together where they are of one model and one traffic."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.core.errors import UsageError
from whet.core.run import Run
from whet.flow.run.conclude.conclude import decide_over

PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo" / "run.tar.xz"
Edit = Callable[[dict[str, Any]], None]


def stored(folder: Path, edits: dict[str, Edit]) -> Run:
    """The published run on another tier, with changes to its files."""
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    root = folder / "run"
    for name, edit in {"resolved_spec.json": lambda _: None, **edits}.items():
        data = json.loads((root / name).read_text())
        edit(data)
        if name == "resolved_spec.json":
            data["hardware"]["tier"] = folder.name
        (root / name).write_text(json.dumps(data))
    return Run.read(root)


def both(tmp_path: Path, **edits: Edit) -> None:
    names = {
        "target": "models/target.json",
        "spec": "resolved_spec.json",
        "workload": "workloads/b008-t0.json",
    }
    other = stored(tmp_path / "other", {names[key]: edit for key, edit in edits.items()})
    decide_over([stored(tmp_path / "first", {}), other])


def test_a_path_says_nothing(tmp_path: Path) -> None:
    both(tmp_path, target=lambda facts: facts.update(path="/elsewhere"))


def test_a_quantized_checkpoint_of_the_same_model_is_the_same_model(tmp_path: Path) -> None:
    def quantized(facts: dict[str, Any]) -> None:
        facts["stored"]["scheme"] = "W4A16"
        facts["weights_sha256"] = "1" * 64

    both(tmp_path, target=quantized)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"layers": 99}, "their models"),
        ({"weights_sha256": "1" * 64}, "the weights of their models"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=f"differ in {what}.*; decide each alone") as refusal:
        both(tmp_path, target=lambda facts: facts.update(change))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "what"), [("sha256", "tokenizers"), ("chat_template_sha256", "chat templates")]
)
def test_another_tokenizer_is_refused(tmp_path: Path, key: str, what: str) -> None:
    with pytest.raises(UsageError, match=f"differ in their {what}"):
        both(tmp_path, target=lambda facts: facts["tokenizer"].update({key: "1" * 64}))


@pytest.mark.parametrize(
    "edits",
    [
        {"spec": lambda data: data.update(traffic=None, workload={"temperature": 0.7})},
        {"spec": lambda data: data.update(traffic=None)},
        {"workload": lambda facts: facts.update(input_tokens_mean=9.0)},
    ],
)
def test_other_traffic_is_refused(tmp_path: Path, edits: dict[str, Edit]) -> None:
    with pytest.raises(UsageError, match="differ in their traffic"):
        both(tmp_path, **edits)


def test_answers_of_other_lengths_are_a_machines_own(tmp_path: Path) -> None:
    both(tmp_path, workload=lambda facts: facts.update(sha256="1" * 64, output_tokens_mean=9.0))


def test_loops_and_rates_are_not_compared(tmp_path: Path) -> None:
    def open_loop(data: dict[str, Any]) -> None:
        load = {"rates": [2.0], "demand_rps": 4.0, "seconds": 60}
        data["load"] = {k: v for k, v in data["load"].items() if k != "concurrency"} | load

    with pytest.raises(UsageError, match=r"differ in (their kind of load|load.demand_rps)"):
        both(tmp_path, spec=open_loop)


def test_a_run_without_facts_hides_no_other_model(tmp_path: Path) -> None:
    """An attached server's run stores no model: the two others are compared with each other."""
    third = stored(tmp_path / "third", {"models/target.json": lambda facts: facts.update(layers=9)})
    bare = stored(tmp_path / "bare", {})
    (bare.root / "models" / "target.json").unlink()
    runs = [Run.read(bare.root), stored(tmp_path / "first", {}), third]
    with pytest.raises(UsageError, match=r"first/run and .*third/run differ in their models"):
        decide_over(runs)
