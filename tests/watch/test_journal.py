"""The journal and the state: restarts go on, a full disk is counted, damage is survived."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.watch.traffic import Deployment, Truth, simulated_references
from whet.core.errors import StorageError
from whet.core.redact import UNPRINTABLE
from whet.watch.state import Journal, WatchState, advance


def watched(periods: int) -> WatchState:
    deployment, references = Deployment(np.random.default_rng(0)), simulated_references()
    state = WatchState(run="r", variant="v")
    for period in range(periods):
        state = advance(state, deployment.observe(period, Truth()), references).state
    return state


def test_a_stored_state_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    state, journal = watched(30), Journal(tmp_path)
    journal.write_state(state)
    again = Journal(tmp_path).read_state("r", "v")
    assert again == state
    deployment, references = Deployment(np.random.default_rng(5)), simulated_references()
    look = deployment.observe(1000, Truth())
    assert advance(again, look, references) == advance(state, look, references)


def test_the_state_of_another_deployment_is_not_taken(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write_state(watched(3))
    assert journal.read_state("r", "other") == WatchState(run="r", variant="other")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"run": "r", "variant": "v", "periods": "x"}'],
)
def test_a_damaged_state_begins_anew_and_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    journal = Journal(tmp_path)
    assert journal.read_state("r", "v").periods == 0
    assert journal.problem is not None
    assert "begins anew" in journal.problem
    journal.write_state(WatchState(run="r", variant="v"))
    assert journal.problem is None


def test_what_a_server_says_is_no_command_to_whoever_reads_the_journal(tmp_path: Path) -> None:
    """An escape code, a bidirectional override, and half of a surrogate pair."""
    words = "0.32\x1b]0;x\x07\x9b31m\u202e\ud800"
    journal = Journal(tmp_path)
    journal.add("alarm", "now", {"evidence": [words]})
    assert journal.problem is None
    line = (tmp_path / "journal.jsonl").read_text(encoding="utf-8")
    assert UNPRINTABLE.search(line) is None
    assert json.loads(line)["evidence"] == [words]


def test_a_line_with_a_key_of_the_environment_stays_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-ours")
    Journal(tmp_path).add("alarm", "now", {"evidence": ["a server says a-key-of-ours"]})
    (line,) = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert json.loads(line)["evidence"] == ["a server says [redacted]"]


def test_a_state_that_is_a_folder_stays_a_problem_while_lines_are_written(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    journal = Journal(tmp_path)
    journal.write_state(WatchState(run="r", variant="v"))
    journal.add("period", "now", {})
    assert journal.problem is not None
    assert "state.json" in journal.problem


def test_a_journal_that_is_a_fifo_is_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    journal = Journal(tmp_path)
    journal.add("period", "now", {})
    assert journal.dropped == 1


def test_a_full_disk_is_counted_and_the_watch_goes_on(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path)
    journal.add("period", "now", {})
    assert journal.dropped == 1
    assert journal.problem is not None
    assert "is full" in journal.problem
    (tmp_path / "journal.jsonl").unlink()
    journal.add("period", "now", {"a": 1})
    assert journal.problem is None
    line = (tmp_path / "journal.jsonl").read_text()
    assert json.loads(line) == {"at": "now", "kind": "period", "a": 1}


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        Journal(tmp_path / "file" / "state")
