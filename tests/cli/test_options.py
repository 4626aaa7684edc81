"""What every command's options have in common: --set, variables, --json, vLLM's flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet, write_spec, write_whole_spec
from tests.flow.stage import FakeEngine
from tests.scripted_server import scripted_server
from whet.core.errors import NothingQualifiesError, UsageError
from whet.core.spec.reading import apply_overrides
from whet.demo import pair_paths

USAGE = UsageError.exit_code
SMALL = ("--tokenizer", pair_paths()[0], "--num-warmups", 0, "--num-prompts", 4, "--osl", 4)


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("load.trials=3", ("load", "trials"), 3),
        ("name=other", ("name",), "other"),
        ("load.concurrency=[1, 2]", ("load", "concurrency"), [1, 2]),
        (
            "variants.awq.k2.args.max_num_seqs=64",
            ("variants", "awq.k2", "args", "max_num_seqs"),
            64,
        ),
        ("objective.ttft_ms=null", ("objective", "ttft_ms"), None),
    ],
)
def test_a_key_is_set_and_its_sections_are_added(
    text: str, keys: tuple[str, ...], value: object
) -> None:
    data: dict[str, Any] = {"load": {"trials": 1}, "variants": {"awq.k2": {}}}
    apply_overrides(data, [text])
    for key in keys:
        data = data[key]
    assert data == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("load.trials", "give KEY.PATH=VALUE"),
        ("=3", "give KEY.PATH=VALUE"),
        ("load.trials=[", "the value is not YAML"),
        ("name.first=x", "name has no keys in this spec"),
        ("load.trails=3", "unknown key 'trails' in load; did you mean 'trials'?"),
        ("variants.awk.args.max_num_seqs=64", "the spec has no variant 'awk'"),
        ("lod.trials=3", "unknown key 'lod'; did you mean 'load'?"),
    ],
)
def test_a_change_that_cannot_be_made(whet: Whet, pair: Path, text: str, complaint: str) -> None:
    write_spec(pair)
    assert complaint in whet("check", "--set", text).sentence(USAGE)


def test_a_change_reaches_the_run_and_is_noted_beside_it(
    whet: Whet, scripted: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole_spec(tmp_path)
    monkeypatch.setenv("WHET_RUN_NAME", "from-a-variable")
    said = whet("run", "--set", "load.trials=1", "--set", "load.concurrency=[2]", "--json")
    assert said.code == NothingQualifiesError.exit_code, said.err
    root = tmp_path / "runs" / "from-a-variable"
    resolved = json.loads((root / "resolved_spec.json").read_text())
    assert (resolved["load"]["trials"], resolved["load"]["concurrency"]) == (1, [2])
    assert "# changed by --set load.trials=1" in (root / "spec.yaml").read_text()
    document = json.loads(said.out)
    assert {cell["load"]["concurrency"] for cell in document["cells"]} == {2}
    assert json.loads(whet("report", root, "--json").out) == document
    decided = json.loads(whet("decide", root, "--json").out)["decision"]
    assert decided["recommendation"] is None


def test_check_and_doctor_print_one_json_document(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    checked = json.loads(whet("check", "--json").out)
    assert "fp16" in [each["variant"] for each in checked["variants"]]
    assert "device" in json.loads(whet("doctor", "--json").out)


def test_quiet_prints_nothing_that_succeeds(whet: Whet, pair: Path) -> None:
    write_spec(pair)
    said = whet("check", "--quiet")
    assert (said.code, said.out) == (0, "")


def test_bench_takes_the_flags_of_vllm_bench_serve(
    whet: Whet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WHET_HTTP_HEADERS", raising=False)
    with scripted_server() as server:
        said = whet(
            "bench", "--base-url", server.url, "--backend", "vllm", *SMALL, "--temperature", 0.7,
            "--top-p", 0.9, "--no-ignore-eos", "--extra-body", '{"min_tokens": 2}', "--header",
            "X-Team=search", "--metadata", "label=try", "--metadata", "gpu=L4", "--json",
        )  # fmt: skip
        body, headers = server.requests[-1], server.headers
    assert said.code == 0, said.err
    run = json.loads(said.out)["runs"][0]
    assert (run["label"], run["gpu"], run["completed"]) == ("try", "L4", 4)
    assert (body["temperature"], body["top_p"], body["min_tokens"]) == (0.7, 0.9, 2)
    assert "ignore_eos" not in body
    assert headers["x-team"] == "search"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--use-beam-search",), "--use-beam-search is not supported; beam search is not streamed"),
        (("--lora-modules", "a"), "--lora-modules is not supported; name the adapter with --model"),
        (("--header", "X-Team"), "--header takes KEY=VALUE"),
        (("--extra-body", "{"), "--extra-body is not valid JSON"),
        (("--extra-body", "[1]"), "--extra-body must be a JSON object"),
        (("--conversations", "2"), "replay a log of chats with --trace"),
        (("--port", "1"), "--port is not supported; give the server's URL"),
        (("--form", "text", "--backend", "openai-chat"), "name different endpoints"),
        (("--osl",), "requires an argument"),
        (("--num-promts", "3"), "Did you mean --num-prompts?"),
    ],
)
def test_bench_options_that_cannot_be(whet: Whet, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in whet("bench", "http://127.0.0.1:1", *words).sentence(USAGE)
