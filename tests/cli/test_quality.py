"""``whet quality``: what it tells, what it keeps, how it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from tests.flow.gate_stage import SMALL, Model, serve, write_questions
from whet.core.errors import (
    EngineLostError,
    InfeasibleError,
    MeasurementError,
    NothingQualifiesError,
    StorageError,
    UsageError,
)

FAIL, UNKNOWN = NothingQualifiesError.exit_code, MeasurementError.exit_code
USAGE, STORAGE = UsageError.exit_code, StorageError.exit_code


@pytest.fixture
def questions(tmp_path: Path) -> tuple[str, ...]:
    return write_questions(tmp_path / "data")


def test_the_same_answers_pass_and_the_table_names_what_was_asked(
    whet: Whet, questions: tuple[str, ...], tmp_path: Path
) -> None:
    with serve(Model()) as a, serve(Model()) as b:
        said = whet("quality", a.url, "--baseline", b.url, *questions, "--json")
    assert said.code == 0, said.err
    assert "at 1 %: pass" in said.err, "with --json the table goes to stderr"
    for row in ("perplexity", "KL p99", "flips", "sums", "100%"):
        assert row in said.err
    told = json.loads(said.out)
    assert told["verdicts"] == [[0.01, "pass"]]
    assert told["record"]["perplexity"]["value"] == pytest.approx(256)
    assert told["baseline"]["engine_version"] == "0.32.0"
    assert not (tmp_path / "quality-baseline").exists()  # only a lone target is kept


def test_a_loss_fails_with_its_code_and_shows_at_most_three_answers_side_by_side(
    whet: Whet, questions: tuple[str, ...]
) -> None:
    with serve(Model(wrong=11)) as worse, serve(Model()) as base:
        said = whet("quality", worse.url, "--baseline", base.url, *questions)
    assert "11 answers lost and 0 gained" in said.sentence(FAIL)
    assert "at 1 %: fail" in said.out
    assert said.out.count("question ") == 3
    assert said.out.count("1000") == 3


def test_every_tolerance_has_its_verdict_and_the_worst_decides(
    whet: Whet, questions: tuple[str, ...]
) -> None:
    tolerances = ("--tolerance", "0.01", "--tolerance", "0.05")
    with serve(Model(loss=0.02)) as worse, serve(Model()) as base:
        said = whet("quality", worse.url, "--baseline", base.url, *questions, *tolerances)
    assert said.code == FAIL
    assert "at 1 %: fail" in said.out
    assert "at 5 %: pass" in said.out


def test_a_server_that_scores_no_prompt_is_unknown_with_the_reason(
    whet: Whet, questions: tuple[str, ...]
) -> None:
    with serve(Model(scores_prompts=False)) as blind, serve(Model()) as base:
        said = whet("quality", blind.url, "--baseline", base.url, *questions)
    assert "leaves prompt_logprobs out" in said.sentence(UNKNOWN)
    assert "at 1 %: unknown" in said.out


def test_a_kept_baseline_holds_a_later_deployment_without_the_first_files(
    whet: Whet, questions: tuple[str, ...], tmp_path: Path
) -> None:
    with serve(Model()) as base:
        kept = whet("quality", base.url, *questions)
    assert kept.code == 0, kept.err
    assert "quality-baseline" in kept.out
    shutil.rmtree(tmp_path / "data")
    against = ("--against", "quality-baseline")
    with serve(Model()) as same, serve(Model(loss=0.02)) as worse:
        assert whet("quality", same.url, *against).code == 0
        said = whet("quality", worse.url, *against)
    assert said.code == FAIL
    assert "perplexity changes by +2.02 %" in said.err


def test_a_kept_baseline_is_never_written_over(whet: Whet, questions: tuple[str, ...]) -> None:
    with serve(Model()) as base:
        assert whet("quality", base.url, *questions, "--save", "kept").code == 0
        asked = len(base.asked)
        said = whet("quality", base.url, *questions, "--save", "kept")
        assert len(base.asked) == asked
    assert "kept exists" in said.sentence(STORAGE)


def test_a_baseline_that_is_not_whole_is_not_kept(
    whet: Whet, questions: tuple[str, ...], tmp_path: Path
) -> None:
    with serve(Model(scores_prompts=False)) as base:
        said = whet("quality", base.url, *questions)
    said.sentence(UNKNOWN)
    assert "not saved" in said.out
    assert not (tmp_path / "quality-baseline").exists()


def test_speculation_that_changes_answers_fails_and_one_that_does_not_passes(
    whet: Whet, questions: tuple[str, ...]
) -> None:
    with serve(Model()) as base:
        bare = whet("quality", base.url, *questions, "--save", "bare")
        asked = len(base.asked)
        saved = whet("quality", base.url, *questions, "--save", "kept", "--speculative")
        assert len(base.asked) - 2 * asked > 40, "its prompts are asked for this check alone"
    assert (bare.code, saved.code) == (0, 0)
    held = ("--against", "kept", "--speculative")
    with serve(Model(accepted=60)) as sound, serve(Model(accepted=60, greedy=66)) as lossy:
        passed = whet("quality", sound.url, *held)
        failed = whet("quality", lossy.url, *held)
        unasked = whet("quality", sound.url, "--against", "bare", "--speculative").sentence(USAGE)
    assert unasked.endswith("save the baseline again with --speculative")
    assert passed.code == 0, passed.err
    assert "accepted here" in passed.out
    assert "60.0%" in passed.out
    assert "speculation:" in failed.sentence(FAIL)


def test_another_tokenizer_than_the_baselines_is_refused_before_anything_is_asked(
    whet: Whet, questions: tuple[str, ...], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "data" / "tokenizer", other)
    data = json.loads((other / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(data))
    with serve(Model(root=str(other))) as target, serve(Model()) as base:
        said = whet("quality", target.url, "--baseline", base.url, *questions)
        assert not target.asked
        assert not base.asked
    told = said.sentence(InfeasibleError.exit_code)
    assert "another tokenizer than the baseline: the id of token" in told


def test_a_server_that_does_not_answer_is_told_in_one_sentence(
    whet: Whet, questions: tuple[str, ...]
) -> None:
    with serve(Model()) as gone:
        pass
    told = whet("quality", gone.url, *questions).sentence(EngineLostError.exit_code)
    assert "cannot be reached" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--baseline", "http://x", "--against", "kept"), "give one of them"),
        (("--against", "kept", "--save", "other"), "leave --against out"),
        (("--tolerance", "1.5"), "give a share, as 0.01"),
        (("--max-documents", "0"), "--max-documents"),
        (("--protocol", "window"), "--protocol"),
        (("--top-logprobs", "99"), "at most 20 likeliest tokens"),
        (("--against", "kept", "--max-tasks", "5"), "--max-tasks does not go with --against"),
        (("--limit", "5"), "--limit belongs to --lm-eval"),
    ],
)
def test_words_that_do_not_go_together(whet: Whet, words: tuple[str, ...], told: str) -> None:
    assert told in whet("quality", "http://127.0.0.1:9", *words).sentence(USAGE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--against", "nothing"), "nothing holds no saved baseline"),
        (("--heldout", "nothing.jsonl"), "--heldout: no file at nothing.jsonl"),
        ((), "give its folder or hub id with --tokenizer"),
        (("--model", "other"), "has no model 'other'; --model takes one of m"),
    ],
)
def test_what_is_not_there(whet: Whet, words: tuple[str, ...], told: str) -> None:
    with serve(Model()) as target:
        assert told in whet("quality", target.url, *words).sentence(USAGE)


def test_an_address_without_its_scheme_is_told_how_to_be_written(whet: Whet) -> None:
    assert "write http://localhost:8000" in whet("quality", "localhost:8000", *SMALL).sentence(
        USAGE
    )
