"""A run is shared as one archive: the same decision, and not a word of its traffic."""

from __future__ import annotations

import json
import lzma
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.stage import Whet
from tests.cli.test_privacy import MARK, write_run
from tests.flow.stage import FakeEngine
from tests.older_run import forget_hashes
from whet.core.errors import StorageError
from whet.core.run import Run
from whet.core.store import RunStore, write_json
from whet.flow.run.conclude.conclude import decide_over
from whet.flow.run.export import export_run

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
WORD = "quagga"
"""Stands for what a variable, a folder, a host, or a server's complaint says."""


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def plant(root: Path) -> None:
    """Put the word where engines, servers and answers may have left it."""
    start = next((root / "starts").glob("*.json"))
    change(start, canary_text=f"{WORD} says")
    facts = next((root / "facts").glob("*.json"))
    notices = [f"connects to tcp://{WORD}.internal:29500 and 10.1.2.3", f"reads /srv/{WORD}/x.bin"]
    change(facts, notices=[*notices, f"on {socket.gethostname()}"])
    quality = next((root / "quality").glob("*.json"))
    read = f"a text is read as other tokens (1 of 9): '{WORD}' instead of '{MARK}'"
    change(quality, identity={"checked": 9, "problems": [read], "missing": None})
    reason = f"the task failed: http_400: cannot parse '{MARK} {WORD}'"
    line = {"at": 0.0, "kind": "notices", "key": "x", "status": "failed", "reason": reason}
    with (root / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps(line) + "\n")
    trial = next((root / "trials").glob("*.json"))
    requests = json.loads(trial.read_text())["requests"]
    requests[0] |= {"text": f"{MARK} {WORD}"}
    change(trial, requests=requests)


def unpacked(archive: Path, folder: Path) -> Run:
    with tarfile.open(archive) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    return Run.read(folder / "run")


@pytest.mark.parametrize("keep", [False, True])
def test_an_archive_has_the_decision_and_no_word_of_its_traffic(
    whet: Whet, scripted: FakeEngine, tmp_path: Path, keep: bool
) -> None:
    home = tmp_path / f"{WORD} of mine"
    home.mkdir()
    spec = write_run(home, keep_prompts=keep)
    data = yaml.safe_load(spec.read_text())
    data["engine"]["env"] = {"SHOP_NAME": f"the {WORD}", "SHOP_ID": "zoo"}
    data["variants"]["other"]["env"] = {"SHOP_NAME": f"no {WORD}"}
    spec.write_text(yaml.safe_dump(data))
    assert whet("run", spec).code in (0, 9)
    root = tmp_path / "runs" / "tiny"
    if not root.exists():
        root = home / "runs" / "tiny"
    forget_hashes(root)
    stored = Run.read(root)
    plant(root)
    archive = tmp_path / "shared.tar.xz"
    said = whet("report", root, "--export", archive, "--quiet")
    assert said.code == 0, said.err
    data = lzma.decompress(archive.read_bytes())
    for word in (MARK, WORD, "10.1.2.3", socket.gethostname(), "=zoo", str(tmp_path)):
        assert word.encode() not in data, data[max(0, data.find(word.encode()) - 200) :][:260]
    shared = unpacked(archive, tmp_path / "elsewhere")
    assert shared.decision == stored.decision
    assert shared.cells == stored.cells
    again, before = decide_over([shared]), decide_over([stored])
    assert [(each.variant, each.load, each.status) for each in again.cells] == [
        (each.variant, each.load, each.status) for each in before.cells
    ]
    assert again.excluded == before.excluded
    assert len({item.variant.env for item in shared.engines.values()}) == 2, "they still differ"
    assert whet("report", shared.root).code == 0


def test_a_run_with_levers_of_its_own_is_reported_by_a_fresh_process(tmp_path: Path) -> None:
    variants = {"fp16": {}, "rust": {"frontend": "rust"}}
    spec = {"name": "a", "model": {"target": "t"}, "hardware": {"price_usd_per_hour": 1.0}}
    with RunStore.open(tmp_path / "run") as store:
        write_json(store.path("resolved_spec.json"), {**spec, "variants": variants})
        store.note("models", "target", status="failed", reason="killed")
    words = [sys.executable, "-m", "whet", "report", str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_published_run_is_decided_to_the_digits_that_are_shown(tmp_path: Path) -> None:
    run = unpacked(PUBLISHED, tmp_path / "a")
    export_run(run.root, tmp_path / "again.tar.xz")
    shared = unpacked(tmp_path / "again.tar.xz", tmp_path / "b")
    first, again = decide_over([run]), decide_over([shared])
    assert again == first, "its times were rounded before"
    assert (tmp_path / "again.tar.xz").stat().st_size < PUBLISHED.stat().st_size
    trial = next(iter(shared.trials))
    assert {event.sent_ns % 10_000 for event in trial.requests} == {0}
    assert {event.text for event in trial.requests} == {""}


@pytest.mark.parametrize("text", ["null", "[", "[" * 100_000, "[]", "\ud800"])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    with RunStore.open(tmp_path / "run") as store:
        store.put("spreads", "all", {"a": 1})
    (tmp_path / "run" / "spreads" / "all.json").write_text(text, errors="surrogatepass")
    with pytest.raises(StorageError, match=r"all\.json is damaged"):
        export_run(tmp_path / "run", tmp_path / "out.tar.xz")


def test_a_torn_line_of_the_journal_is_left_out(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run") as store:
        store.put("spreads", "all", {"a": 1})
    with (tmp_path / "run" / "journal.jsonl").open("a") as file:
        file.write('{"kind": "tri')
    export_run(tmp_path / "run", tmp_path / "out.tar.xz")
    with tarfile.open(tmp_path / "out.tar.xz") as tar:
        lines = tar.extractfile("run/journal.jsonl").read().splitlines()  # type: ignore[union-attr]
    assert [json.loads(line)["kind"] for line in lines] == ["spreads"]
