"""``whet ci`` at the command line: bad input in one sentence, exit codes, the files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.ci.planted import (
    CPU_DEMO,
    change_cell,
    change_file,
    change_record,
    change_trials,
    scaled_counter,
    slower,
    unpack,
)
from tests.cli.stage import Whet
from whet.core.counters import ACCEPTED
from whet.core.errors import MeasurementError, NothingQualifiesError, StorageError, UsageError
from whet.core.records.evidence import VerdictSet
from whet.core.run import Run

USAGE, FAIL, UNKNOWN = (
    error.exit_code for error in (UsageError, NothingQualifiesError, MeasurementError)
)


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    return unpack(CPU_DEMO, tmp_path)


@pytest.fixture
def candidate(tmp_path: Path, baseline: Path) -> Path:
    return Path(shutil.copytree(baseline, tmp_path / "candidate"))


def drift(root: Path) -> None:
    """Let each round of a run be slower than the last, which leaves its cost undecided."""
    for variant in Run.read(root).variants:
        change_trials(root, variant, lambda trial: slower(1 + 0.1 * trial.trial)(trial))


def test_a_run_that_is_not_there(whet: Whet, baseline: Path) -> None:
    for words in (("nowhere", "--against", baseline), (baseline, "--against", "nowhere")):
        said = whet("ci", *words).sentence(StorageError.exit_code)
        assert said.startswith("nowhere holds no run")


def test_a_missing_baseline_option_and_a_share_that_is_not_one(whet: Whet, baseline: Path) -> None:
    assert "--against" in whet("ci", baseline).sentence(USAGE)
    words = ("ci", baseline, "--against", baseline, "--max-regression")
    for share in ("0", "1.5", "five"):
        assert "--max-regression" in whet(*words, share).sentence(USAGE)


def test_an_unfinished_run(whet: Whet, candidate: Path, baseline: Path) -> None:
    journal = candidate / "journal.jsonl"
    lines = [x for x in journal.read_text().splitlines(keepends=True) if "fp16--b008" not in x]
    journal.write_text("".join(lines))
    said = whet("ci", candidate, "--against", baseline).sentence(UNKNOWN)
    assert said.startswith(f"{candidate} is unfinished: fp16 has no figures at concurrency 8")
    assert said.endswith("--resume")
    (baseline / "decision.json").unlink()
    said = whet("ci", baseline, "--against", baseline).sentence(UNKNOWN)
    assert "No decision was made" in said


def test_a_variant_that_a_run_lacks(whet: Whet, candidate: Path, baseline: Path) -> None:
    words = ("ci", candidate, "--against", baseline)
    said = whet(*words, "--variant", "draft+cash").sentence(USAGE)
    assert (
        f"the baseline {baseline} has no figures of 'draft+cash'; did you mean 'draft+cache'?"
        in said
    )

    def remove(spec: dict[str, dict[str, object]]) -> None:
        del spec["variants"]["draft+cache"]
        spec["load"]["together"] = []

    change_file(candidate, "resolved_spec.json", remove)
    journal = candidate / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"key": "draft+cache' not in line))
    said = whet(*words).sentence(USAGE)
    assert f"the candidate {candidate} has no variant 'draft+cache' (it has fp16, " in said
    assert "compare another one with --variant" in said


def test_a_baseline_without_a_recommendation(whet: Whet, candidate: Path, baseline: Path) -> None:
    change_file(baseline, "decision.json", lambda data: data.update(recommendation=None))
    said = whet("ci", candidate, "--against", baseline).sentence(USAGE)
    assert said == (
        f"the baseline {baseline} recommends no variant; name the deployed one with --variant "
        "(fp16, fp16+cache, draft+cache, awq+draft+cache)"
    )
    named = whet("ci", candidate, "--against", baseline, "--variant", "draft+cache")
    assert named.code == 0, named.err


def test_a_folder_that_cannot_be_written(whet: Whet, baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ("ci", baseline, "--against", baseline, "--junit", tmp_path / "file" / "junit.xml")
    assert "cannot write" in whet(*words).sentence(StorageError.exit_code)


def test_files_that_are_a_device_a_link_and_a_fifo(
    whet: Whet, baseline: Path, tmp_path: Path
) -> None:
    null, link, fifo = (tmp_path / name for name in ("null", "link.md", "fifo"))
    null.symlink_to("/dev/null")
    (tmp_path / "target.md").write_text("old")
    link.symlink_to("target.md")
    os.mkfifo(fifo)
    texts: list[str] = []
    reader = threading.Thread(target=lambda: texts.append(fifo.read_text()))
    reader.start()
    files = ("--junit", fifo, "--markdown", link)
    said = whet("ci", baseline, "--against", baseline, *files)
    reader.join(10)
    assert said.code == 0, said.err
    assert null.is_symlink()
    assert link.is_symlink()
    assert fifo.is_fifo()
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "target.md").read_text().startswith("# ")
    assert texts[0].startswith("<?xml")


def test_a_default_of_the_baseline_that_failed(whet: Whet, candidate: Path, baseline: Path) -> None:
    """Its own comparison is refused; the recommended variant is compared as ever."""
    for size in (1, 8):
        change_cell(baseline, "fp16", size, status="failed", failure="the server ran out of memory")
    said = whet("ci", candidate, "--against", baseline, "--variant", "fp16").sentence(USAGE)
    assert said == (
        f"the baseline {baseline} has no figures of 'fp16': the server ran out of memory; name a "
        "variant of it with --variant (fp16+cache, draft+cache, awq+draft+cache)"
    )
    assert whet("ci", candidate, "--against", baseline).code == 0


def test_runs_of_one_start_lose_no_file(whet: Whet, baseline: Path) -> None:
    for variant in Run.read(baseline).variants:
        change_trials(baseline, variant, lambda trial: replace(trial, start=0))
    said = whet("ci", baseline, "--against", baseline, "--junit", "j.xml").sentence(UNKNOWN)
    assert said.endswith("one start has no interval; set load.trials to 2 or more")
    assert said.startswith(
        "draft+cache is inconclusive (counts as not passed): cost, concurrency 8"
    )
    assert ElementTree.parse("j.xml").getroot().get("failures") == "1"


def test_keys_of_levers_in_a_stored_spec_are_read_by_a_new_process(baseline: Path) -> None:
    def add(spec: dict[str, dict[str, dict[str, object]]]) -> None:
        spec["variants"]["fp16"]["performance_mode"] = "throughput"

    change_file(baseline, "resolved_spec.json", add)
    words = [sys.executable, "-m", "whet", "ci", str(baseline), "--against", str(baseline)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_exit_codes_follow_the_verdict(whet: Whet, candidate: Path, baseline: Path) -> None:
    words = ("ci", candidate, "--against", baseline, "--quiet")
    passed = whet(*words)
    assert (passed.code, passed.out, passed.err) == (0, "", "")
    drift(candidate)
    said = whet(*words).sentence(UNKNOWN)
    assert said.startswith("draft+cache is inconclusive (counts as not passed): cost, concurrency ")
    assert "starts of each would decide" in said
    change_trials(candidate, "draft+cache", slower(3), 8)
    change_trials(candidate, "draft+cache", scaled_counter(ACCEPTED, 0.5))
    said = whet(*words).sentence(FAIL)
    assert said.startswith("draft+cache fails: cost, concurrency 8: ")
    assert "Probable cause: acceptance length, concurrency 1 " in said


def test_a_claim_that_no_longer_holds_fails_on_any_machine(
    whet: Whet, candidate: Path, baseline: Path
) -> None:
    own = [each for each in Run.read(candidate).verdicts if each.variant == "draft+cache"]
    rest = tuple(each for each in own if each.claim.kind != "speculation")
    change_record(candidate, "verdicts", "draft+cache", VerdictSet, verdicts=rest)
    change_file(candidate, "environment.json", lambda data: data.update(cpu_count=64))
    said = whet("ci", candidate, "--against", baseline).sentence(FAIL)
    assert "evidence: speculation: the baseline proves it" in said


def test_every_output_says_the_same(whet: Whet, candidate: Path, baseline: Path) -> None:
    files = {"--junit": "j.xml", "--markdown": "s.md"}
    options = [word for pair in files.items() for word in pair]
    drift(candidate)
    said = whet("ci", candidate, "--against", baseline, "--json", *options)
    assert said.code == UNKNOWN
    result = json.loads(said.out)
    assert (result["verdict"], result["variant"]) == ("unknown", "draft+cache")
    (primary,) = [each for each in result["checks"] if each["role"] == "primary"]
    assert (primary["name"], primary["verdict"]) == ("cost, concurrency 8", "unknown")
    root = ElementTree.parse("j.xml").getroot()
    assert root.get("tests") == str(len(result["checks"]))
    failures = [each for each in result["checks"] if each["verdict"] in ("fail", "unknown")]
    assert root.get("failures") == str(len(failures))
    assert Path("s.md").read_text().startswith("# whet ci: unknown\n")
    assert "Checks" in said.err, "tables go to stderr beside JSON"


def test_init_refuses_what_is_there_and_a_spec_that_is_not(whet: Whet) -> None:
    assert "no spec file at whet.yaml" in whet("ci", "init").sentence(USAGE)
    whet("init", "whet.yaml", "--model", "./target")
    written = whet("ci", "init")
    assert (written.code, written.err) == (0, "")
    assert written.out.splitlines()[0] == "Wrote .github/workflows/whet.yml"
    said = whet("ci", "init").sentence(USAGE)
    assert said == (
        ".github/workflows/whet.yml exists; move it away, or choose another --output-dir"
    )
    assert whet("ci", "init", "-o", "other").code == 0
    assert Path("other/.github/workflows/whet.yml").exists()
