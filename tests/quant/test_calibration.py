"""Calibration text: every accepted form, and one clear sentence for every other."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tokenizer
from whet.core.errors import UsageError
from whet.quant import Calibration, load_calibration


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    return path


def load(path: Path, tokenizer: Path, **changes: int) -> Calibration:
    wanted = {"samples": 8, "max_tokens": 16, "seed": 0, **changes}
    return load_calibration(path, tokenizer, **wanted)


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "calibration.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_messages_go_through_the_chat_template(tokenizer: Path, tmp_path: Path) -> None:
    """The factory's template writes <|start|> (id 0) before each message and nothing else."""
    chat = [{"role": "user", "content": "the order"}, {"role": "assistant", "content": "arrived"}]
    result = load(jsonl(tmp_path, {"messages": chat}), tokenizer)
    assert result.ids[0][0] == 0
    assert result.ids[0].count(0) == 2


def test_content_in_parts_reads_like_plain_content(tokenizer: Path, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "order"}]
    (tmp_path / "a").mkdir()
    whole = load(
        jsonl(tmp_path, {"messages": [{"role": "user", "content": "the order"}]}), tokenizer
    )
    split = load(
        jsonl(tmp_path / "a", {"messages": [{"role": "user", "content": parts}]}), tokenizer
    )
    assert whole.ids == split.ids


def test_facts_say_what_was_used(tokenizer: Path, tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"text": "the order was shipped"}, {"prompt": "a refund"}, {"text": " "})
    result = load(path, tokenizer, seed=3)
    assert result.facts.samples == len(result.ids) == 2
    assert result.facts.tokens == sum(map(len, result.ids))
    assert result.facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (result.facts.max_tokens, result.facts.seed) == (16, 3)


def test_the_seed_decides_the_draw_and_nothing_else_does(tokenizer: Path, tmp_path: Path) -> None:
    path = jsonl(tmp_path, *({"text": f"the order number {i} was shipped"} for i in range(60)))
    again = load(path, tokenizer)
    assert load(path, tokenizer) == again
    assert len(again.ids) == 8
    assert load(path, tokenizer, seed=1).ids != again.ids


def test_long_documents_become_windows_that_keep_the_first_token(
    tokenizer: Path, tmp_path: Path
) -> None:
    words = " ".join(f"monday {i}" for i in range(80))
    chats = ({"messages": [{"role": "user", "content": words}]} for _ in range(6))
    result = load(jsonl(tmp_path, *chats), tokenizer)
    assert {len(sample) for sample in result.ids} == {16}
    assert {sample[0] for sample in result.ids} == {0}
    assert len(set(result.ids)) > 1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], "is empty"),
        ([{"text": "  "}], "no usable text; give JSONL rows with messages"),
        ([{"question": "x"}], "no request in it: 1"),
        ([{"messages": []}], "malformed messages: 1"),
        (["text"], "not a JSON object: 1"),
        ([{"text": 3}], "neither text nor token ids: 1"),
    ],
)
def test_a_file_with_no_text_is_refused(
    rows: list[object], reason: str, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=reason):
        load(jsonl(tmp_path, *rows), tokenizer)


def test_other_faults_name_the_file_and_the_line(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "absent.jsonl", tokenizer)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "the order"}\n{"text": \n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"1 of 2 lines are broken, .*first broken.jsonl:2"):
        load(broken, tokenizer)


def test_chats_without_a_template_are_plain_text(tokenizer: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    write_tokenizer(bare)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    chat = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "order"}]
    (tmp_path / "chat").mkdir()
    made = load(jsonl(tmp_path / "chat", {"messages": chat}), bare)
    assert made.ids == load(jsonl(tmp_path, {"text": "the\n\norder"}), bare).ids
    assert made.facts.warnings == (
        "the tokenizer has no chat template: scales are fitted on chats as plain text",
    )
