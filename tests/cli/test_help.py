"""What a command asks for, in short and in full, and under the names that other tools have."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from tests.scripted_server import scripted_server
from whet._version import __version__
from whet.cli import main
from whet.core.errors import UsageError
from whet.demo import pair_paths

USAGE = UsageError.exit_code


@pytest.mark.parametrize("words", [("help",), ("-h",)])
def test_help_is_asked_for_in_several_ways(whet: Whet, words: tuple[str, ...]) -> None:
    said = whet(*words)
    assert said.code == 0
    assert "Usage: whet COMMAND" in said.out
    assert said.out.index("─ The tools alone ─") < said.out.index("─ Options ─")
    assert "─ Commands ─" not in said.out
    assert whet("help", "report").out == whet("report", "--help").out


def test_the_version_has_a_short_flag(whet: Whet) -> None:
    assert whet("-V").out.strip() == __version__


def test_bench_shows_a_dozen_options_and_with_help_all_the_rest(whet: Whet) -> None:
    short, whole = whet("bench", "--help").out, whet("bench", "--help-all").out
    shown = re.findall(r"^│ (?:URL )?(--[a-z-]+)", short, re.MULTILINE)
    assert 12 <= len(shown) <= 15
    assert "whet bench --help-all shows every option." in short
    assert len(re.findall(r"^│ (?:URL )?(--[a-z-]+)", whole, re.MULTILINE)) > 40


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("plan", "llama"),
            "whet plan needs --workload; give --workload: Traffic: prompt=1024,output=128",
        ),
        (("report",), "whet report needs RUN_DIR; give RUN_DIR: Folder of a run."),
    ],
)
def test_what_is_missing_is_named(whet: Whet, words: tuple[str, ...], sentence: str) -> None:
    said = whet(*words).sentence(USAGE)
    assert said.startswith(sentence)


def test_a_load_under_the_names_of_guidellm_and_aiperf(whet: Whet) -> None:
    with scripted_server() as server:
        said = whet(
            "bench", f"--target={server.url}", "--processor", pair_paths()[0], "--max-requests", 5,
            "--warmup-request-count", 0, "--synthetic-input-tokens-mean", 24,
            "--output-tokens-mean", 4, "--random-seed", 7, "--json",
        )  # fmt: skip
        lengths = {len(body["prompt"]) for body in server.requests}
    assert said.code == 0, said.err
    run = json.loads(said.out)["runs"][0]
    assert (run["completed"], run["total_output_tokens"], lengths) == (5, 20, {24})


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--max-seconds", "give the number of requests with --num-prompts"),
        ("--rate", "--request-rate"),
        ("--data", "--dataset-path"),
        ("--endpoint-type", "--form chat"),
        ("--streaming", "every request is streamed"),
    ],
)
def test_an_option_that_means_something_else_names_ours(
    whet: Whet, option: str, instead: str
) -> None:
    said = whet("bench", "http://127.0.0.1:1", option, "9").sentence(USAGE)
    assert said.startswith(f"whet bench {option} is not supported; ")
    assert instead in said


def test_names_of_other_tools_lead_to_options_that_exist(whet: Whet) -> None:
    whole = whet("bench", "--help-all").out
    text = Path(main.__file__).with_name("other_words.csv").read_text()
    rows = [row for row in csv.DictReader(text.splitlines()) if row["command"] == "bench"]
    assert all(bool(row["same"]) != bool(row["instead"]) for row in rows)
    assert all(row["same"] in whole for row in rows)
    assert not any(f" {row['option']} " in whole for row in rows)


@pytest.mark.parametrize("option", ["--isl", "--ttft"])
def test_plan_names_its_own_words(whet: Whet, option: str) -> None:
    said = whet("plan", "model", option, "9").sentence(USAGE)
    assert "--workload prompt=1024,output=128" in said
