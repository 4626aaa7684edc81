"""Foreign text at the command line: what is printed, and files of hostile names and records."""

from __future__ import annotations

import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.table import Table
from rich.text import Text

from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import Whet
from tests.cli.test_init_from_log import write_log
from tests.payloads import CANARY, PAYLOADS
from tests.scripted_server import scripted_server
from whet.cli.observer import ConsoleObserver
from whet.cli.options import print_json, print_line
from whet.cli.terminal import TerminalConsole, clean_output
from whet.core.errors import StorageError, UsageError
from whet.core.redact import UNPRINTABLE, printable_json
from whet.core.spec import load_spec
from whet.demo import pair_paths

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
EVERYTHING = " ".join(PAYLOADS.values())
HOSTILE = "m\x1b[2J\x1b]52;c;ZXZpbA==\x07\u202e\u2066\x9b31m\u2028[bold]x[/y]"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return tmp_path / "run"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# What is printed.


@pytest.mark.parametrize("colour", ["", "1"])
def test_no_way_out_of_a_command_lets_a_control_character_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colour)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(EVERYTHING)
    with clean_output():
        for console in (TerminalConsole(), TerminalConsole(stderr=True)):
            console.print(EVERYTHING, style="red")
            console.print(Text(EVERYTHING, "bold"), table)
        observer = ConsoleObserver()
        observer.stage(EVERYTHING, EVERYTHING)
        observer.note(EVERYTHING)
        observer.warn(EVERYTHING)
        print_line(EVERYTHING)
        print(EVERYTHING)
    out, err = capsys.readouterr()
    assert "\x1b[8m" not in out + err, "hides what follows"
    shown = _STYLE.sub("", out + err)
    assert UNPRINTABLE.search(shown) is None
    assert "[bold]x[/y]" in shown, "no mark-up"


def test_a_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleObserver().note("a\nb  'c  d'")
    assert capsys.readouterr().out.endswith("  a b  'c  d'\n")


def test_json_keeps_every_character_as_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"texts": list(PAYLOADS.values())})
    out = capsys.readouterr().out
    assert UNPRINTABLE.search(out) is None
    assert json.loads(out) == {"texts": list(PAYLOADS.values())}
    assert json.loads(printable_json('"\U000e0041"')) == "\U000e0041"


def test_a_server_with_a_hostile_name(whet: Whet, tmp_path: Path) -> None:
    words = ("--tokenizer", pair_paths()[0], "--num-warmups", 1, "--num-prompts", 4, "--osl", 2)
    with scripted_server(model=HOSTILE, ttft_s=0.001, gap_s=0.001) as server:
        said = whet("bench", server.url, *words, "--save-result", "-o", tmp_path / "o\x1b[31m")
        listed = whet("bench", server.url, *words, "--model", f"other{HOSTILE}")
        as_json = whet("bench", server.url, *words, "--json")
    assert said.code == 0, said.err
    for each in (said, listed, as_json):
        assert UNPRINTABLE.search(each.out + each.err) is None
    assert "result: " in said.out
    assert json.loads(as_json.out)["runs"][0]["model_id"] == HOSTILE


def test_notes_of_a_result_hold_no_key(whet: Whet, tmp_path: Path) -> None:
    key = "sk-abcdefghijklmnopqrstuvwx0123"
    words = ("--tokenizer", pair_paths()[0], "--num-warmups", 1, "--num-prompts", 4, "--osl", 2)
    notes = ("--metadata", f"a={key}", "--metadata", "api_key=s3cr3tvalue", "--metadata", "b=tp 2")
    with scripted_server(ttft_s=0.001, gap_s=0.001) as server:
        said = whet(
            "bench", server.url, *words, "--save-result", "-o", "out", *notes,
            "--metadata", "max_tokens=128", "--metadata", f"label=with {key}",
        )  # fmt: skip
    assert said.code == 0, said.err
    text = (tmp_path / "out" / "bench.json").read_text()
    assert not [word for word in (key, "s3cr3tvalue") if word in text + said.out + said.err]
    told = json.loads(text)
    assert (told["b"], told["max_tokens"], told["label"]) == ("tp 2", "128", "with [redacted]")


def test_an_error_about_a_hostile_path(whet: Whet) -> None:
    said = whet("check", f"none{HOSTILE}.yaml").sentence(UsageError.exit_code)
    assert UNPRINTABLE.search(said) is None


def test_a_foreign_line_break_begins_no_line(whet: Whet, root: Path, tmp_path: Path) -> None:
    """At the begin of a line a person reads whet's own words, and GitHub a workflow command."""
    text = "a\n::set-env name=x::y\rerror: b"
    for words in (("check", f"{text}.yaml"), ("deploy", text), ("prompts", "lint", text)):
        said = whet(*words)
        assert not [line for line in said.err.splitlines() if line.startswith(("::", "error: b"))]
    (tmp_path / f"{text}.txt").write_text("{{ now() }} You are helpful. " * 40)
    whet("prompts", "lint", tmp_path)
    for path in (root / "variants").glob("*.json"):
        change(path, argv=[*json.loads(path.read_text())["argv"], f"--download-dir={text}", text])
    said = whet("deploy", root, "--output-dir", text)
    assert said.code == 0, said.err
    linted = whet("prompts", "lint", tmp_path)
    for each in (said.out, linted.out):
        assert "::set-env" in each
        assert not [line for line in each.splitlines() if line.lstrip().startswith("::")]


def test_several_problems_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError("the spec cannot run:", "  a: b", "  c\nd: e")
    assert str(error) == "the spec cannot run:\n  a: b\n  c\nd: e"


# Records that were read back.


@pytest.mark.parametrize(
    "name", ["newline and key", "escape", "substitution", "unit line", "surrogate"]
)
@pytest.mark.parametrize("target", ["compose", "k8s"])
def test_a_bundle_of_hostile_records(whet: Whet, root: Path, name: str, target: str) -> None:
    text = PAYLOADS[name]
    for path in (root / "variants").glob("*.json"):
        change(path, engine_version=f"0.32.0{text}\0", device=text, served_model_name=text)
    change(
        root / "environment.json",
        device=json.loads((root / "environment.json").read_text())["device"] | {"name": text},
    )
    said = whet("deploy", root, "--target", target)
    assert (said.code, said.err) == (0, "")
    assert UNPRINTABLE.search(said.out) is None
    for path in Path("deployment").rglob("*"):
        if path.suffix in (".yaml", ".yml"):
            assert list(yaml.safe_load_all(path.read_text()))
        if path.is_file():
            assert UNPRINTABLE.search(path.read_text()) is None or path.suffix == ".json"
    assert not Path(CANARY).exists()


def test_a_name_of_a_variable_that_a_record_has(whet: Whet, root: Path) -> None:
    change(root / "variants" / "draft+cache.json", env=[["X$(touch canary)", "1"]])
    said = whet("deploy", root).sentence(StorageError.exit_code)
    assert "'X$(touch canary)' is not a name of an environment variable" in said
    assert not Path("deployment").exists()


def test_a_variant_of_another_name_than_its_file(whet: Whet, root: Path) -> None:
    path = root / "variants" / "draft+cache.json"
    change(path, variant=json.loads(path.read_text())["variant"] | {"name": "../x"})
    said = whet("deploy", root).sentence(StorageError.exit_code)
    assert "has no command of draft+cache; put variants/draft+cache.json back from a copy" in said


def test_a_recommendation_without_its_command(whet: Whet, root: Path) -> None:
    decision = json.loads((root / "decision.json").read_text())
    gone = decision["recommendation"]["variant"]
    journal = root / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    kept = [x for x in lines if (e := json.loads(x))["kind"] != "variants" or e["key"] != gone]
    journal.write_text("".join(kept))
    said = whet("deploy", root).sentence(StorageError.exit_code)
    assert f"has no command of {gone}; put variants/{gone}.json back" in said


# First specs.


@pytest.mark.parametrize(
    "model", [": {", "x\nengine: {python: /x}", "\x1b[31m", "a #b", "fp16/weights: awq", "{draft}"]
)
def test_a_model_of_any_name_is_one_value(whet: Whet, tmp_path: Path, model: str) -> None:
    write_tiny_llama(tmp_path / "fp16" / "weights: awq")
    said = whet("init", "--model", model, "--draft", f"{model}-draft")
    assert said.code == 0, said.err
    data = yaml.safe_load(Path("whet.yaml").read_text())
    assert data["model"] == {"target": model, "draft": f"{model}-draft"}
    assert "python" not in data["engine"]
    load_spec(Path("whet.yaml"))


@pytest.mark.parametrize("name", ["a\nname: b", "a\x1b[31m", "a: b #c", "\u202ea", "'a\"", "-a"])
def test_a_log_of_any_name_is_one_value(whet: Whet, tmp_path: Path, name: str) -> None:
    write_tiny_llama(tmp_path / "model")
    log = write_log(tmp_path / f"{name}.jsonl", 200)
    said = whet("init", "--model", "./model", "--device", "L4", f"--traffic={log.name}")
    assert said.code == 0, said.err
    assert UNPRINTABLE.search(said.out + Path("whet.yaml").read_text()) is None
    spec = load_spec(Path("whet.yaml"))
    assert spec.traffic is not None
    assert spec.traffic.log == log


def test_paths_that_cannot_be_read_are_one_sentence(whet: Whet, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model")
    os.symlink("loop", tmp_path / "loop")
    for words in (
        ("init", "--model", "./model", "--traffic", "loop", "--device", "L4"),
        ("init", "--model", "~nobody/x", "--traffic", "loop"),
        ("check", "loop"),
        ("check", "s" * 5000),
        ("ci", "init", "loop"),
        ("plan", "loop"),
        ("deploy", "loop"),
    ):
        said = whet(*words)
        assert said.code in (UsageError.exit_code, StorageError.exit_code, 3), (words, said.err)
        assert said.sentence(said.code), words
