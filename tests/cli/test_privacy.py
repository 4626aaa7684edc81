"""Prompts of a user's log are in the run's ``inputs/`` and nowhere that is shown or deployed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.cli.stage import Whet
from tests.flow.stage import FakeEngine, tiny_spec

MARK = "zanzibar"


def write_run(folder: Path, **traffic: Any) -> Path:
    """A spec whose log has the mark in every prompt and every answer."""
    lines = [
        {
            "messages": [{"role": "user", "content": f"{MARK} {number} where is it " * 8}],
            "response": {
                "choices": [{"message": {"role": "assistant", "content": f"at {MARK} {number}"}}],
                "usage": {"completion_tokens": 4},
            },
        }
        for number in range(500)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    accepted = {"accept_unproved": ["prefix_cache", "settings", "weights"]}
    log = {"log": "log.jsonl", **traffic}
    spec = tiny_spec(folder, workload={}, traffic=log, evidence=accepted)
    data = spec.model_dump(mode="json")
    data.pop("workload")
    data["quality"] |= {"heldout": None, "max_documents": 60}
    path = folder / "whet.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("keep", [False, True])
def test_no_prompt_leaves_the_runs_inputs(
    whet: Whet, scripted: FakeEngine, tmp_path: Path, keep: bool
) -> None:
    write_run(tmp_path, keep_prompts=keep)
    said = whet("run")
    assert said.code in (0, 9), said.err  # scripted figures may qualify or not
    root = tmp_path / "runs" / "tiny"
    inputs = root / "inputs"
    assert MARK in (inputs / "traffic.jsonl").read_text()
    assert MARK in (inputs / "heldout.jsonl").read_text()
    for folder in (inputs, root / "trials", root / "quality", root / "plain_answers"):
        assert folder.stat().st_mode & 0o777 == 0o700
    marked = [file for file in inputs.rglob("*.jsonl") if MARK in file.read_text()]
    assert {file.stat().st_mode & 0o777 for file in marked} == {0o600}
    assert (inputs / "PRIVATE.txt").exists()
    files = [file for file in root.rglob("*") if file.is_file() and inputs not in file.parents]
    assert len(files) > 20
    assert [file for file in files if MARK.encode() in file.read_bytes()] == []
    texts = set(pd.read_parquet(root / "requests.parquet")["text"])
    assert (texts == {""}) is not keep
    assert MARK not in said.out + said.err
