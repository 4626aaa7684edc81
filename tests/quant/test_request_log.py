"""Calibration from a request log: each shape that logs have, read as the model saw it."""

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.checkpoint_factory import write_tokenizer
from whet.core.errors import UsageError
from whet.quant import Calibration, load_calibration

ASK = [{"role": "user", "content": "the order"}]
ANSWER = {"role": "assistant", "content": "arrived on monday"}
CHOICES = {"choices": [{"index": 0, "message": ANSWER}]}
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.arguments.id }}){% endfor %}"
    "{{ mood }}{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    file = path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return path


def write(folder: Path, *rows: object, end: str = "\n") -> Path:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + end, encoding="utf-8")
    return path


def load(path: Path, tokenizer: Path, **changes: int) -> Calibration:
    return load_calibration(
        path, tokenizer, **{"samples": 16, "max_tokens": 256, "seed": 0, **changes}
    )


def read(folder: Path, tokenizer: Path, row: object) -> str:
    """What the model would be shown of one row."""
    result = load(write(folder, row), tokenizer)
    text = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return str(text.decode(list(result.ids[0]), skip_special_tokens=False))


SEEN = "<|start|>user:the order"
SEEN_BOTH = f"{SEEN}<|start|>assistant:arrived on monday"
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        ({"model": "m", "messages": ASK}, SEEN),
        ({"request": {"model": "m", "messages": ASK}}, SEEN),
        ({**BATCH, "body": {"messages": ASK}}, SEEN),
        ({"request": {"body": {"messages": ASK}}}, SEEN),
        ({"body": json.dumps({"messages": ASK})}, SEEN),
        ({"messages": ASK, "response": CHOICES}, SEEN_BOTH),
        ({"request": {"messages": ASK}, "response": CHOICES}, SEEN_BOTH),
        ({**BATCH, "body": {"messages": ASK}, "response": {"body": CHOICES}}, SEEN_BOTH),
        ({"request": {"messages": ASK}, "response": json.dumps(CHOICES)}, SEEN_BOTH),
        ({"request": {"messages": ASK}, "response": "arrived on monday"}, SEEN_BOTH),
        ({"prompt": "the ", "response": {"choices": [{"text": "order"}]}}, "the order"),
        ({"body": {"prompt": ["the order", "a refund"]}}, "the order"),
    ],
)  # fmt: skip
def test_a_row_is_read_as_the_model_saw_it(
    row: object, seen: str, tokenizer: Path, tmp_path: Path
) -> None:
    assert read(tmp_path, tokenizer, row) == seen


def test_tools_and_template_variables_reach_the_template(tokenizer: Path, tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "find", "arguments": '{"id": 7}'}}
    row = {
        "messages": [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}],
        "chat_template_kwargs": {"mood": "!", "tokenize": True},
    }
    assert read(tmp_path, tokenizer, row) == f"[find]{SEEN}!<|start|>assistant:(7)!"


def test_logged_ids_are_taken_as_they_are(tokenizer: Path, tmp_path: Path) -> None:
    row = {"prompt": [5, 6, 7], "response": {"choices": [{"text": "the"}]}}
    result = load(write(tmp_path, row, {"prompt": [[8, 9]]}), tokenizer)
    assert result.ids[0][:3] == (5, 6, 7)
    assert len(result.ids[0]) > 3
    assert result.ids[1] == (8, 9)
    with pytest.raises(
        UsageError, match=r"requests.jsonl:2 holds token id 9999, .* give a log of this model"
    ):
        load(write(tmp_path, {"prompt": "the"}, {"prompt": [5, 9999]}), tokenizer)


def test_images_are_left_out_and_counted(tokenizer: Path, tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "the "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "order"},
    ]
    result = load(write(tmp_path, {"messages": [{"role": "user", "content": parts}]}), tokenizer)
    plain = load(write(tmp_path, {"messages": ASK}), tokenizer)
    assert result.ids == plain.ids
    assert result.facts.warnings == (
        "content parts that are not text were dropped from the calibration chats: 1 image_url; "
        "scales are fitted on the text around them",
    )


def test_rows_without_text_take_no_part(tokenizer: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": ASK, "response": CHOICES},
        {"text": "the order"},
        {"url": "/v1/embeddings", "body": {"input": "the order"}},
        {"messages": [{"role": "user", "content": " "}]},
    ]
    assert load(write(tmp_path, *rows), tokenizer).facts.samples == 2


def test_documents_keep_the_order_of_the_file(tokenizer: Path, tmp_path: Path) -> None:
    rows = [{"prompt": [11, 12]}, {"text": "a"}, {"messages": ASK}, {"text": "a refund"}]
    result = load(write(tmp_path, *rows, {"prompt": [13, 14]}), tokenizer).ids
    assert result[0] == (11, 12)
    assert result[1][0] == 0, "the chat begins with the start token"
    assert result[-1] == (13, 14)


@pytest.mark.parametrize("torn", ['{"messages": [{"role": "us', '{"text": "caf\u00e9'])
def test_a_torn_last_line_is_left_out_with_a_warning(
    torn: str, tokenizer: Path, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    whole = json.dumps({"messages": ASK}).encode() + b"\n"
    path.write_bytes(whole + torn.encode()[:-1])
    result = load(path, tokenizer)
    assert result.facts.samples == 1
    assert result.facts.warnings == (
        "the last line (requests.jsonl:2) is incomplete; all other lines were read",
    )
    path.write_bytes(whole + torn.encode()[:-1] + b"\n" + whole)
    with pytest.raises(UsageError, match=r"1 of 3 lines are broken, .*first requests\.jsonl:2"):
        load(path, tokenizer)


def test_a_torn_line_alone_is_no_log(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"an incomplete last line: 1, first requests.jsonl:1"):
        load(write(tmp_path, end='{"messages": ['), tokenizer)


def test_a_template_without_a_system_role_gets_it_in_the_first_turn(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    strict = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}<|start|>{{ m.content }}{% endfor %}"
    )
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": strict}))
    row = {"messages": [{"role": "system", "content": "be brief"}, *ASK]}
    assert read(tmp_path, tmp_path, row) == "<|start|>be brief\n\nthe order"
    with pytest.raises(
        UsageError, match=r"requests.jsonl:1: the chat template .*\(no system\); change its roles"
    ):
        read(tmp_path, tmp_path, {"messages": [*ASK, {"role": "system", "content": "late"}]})


def test_the_name_of_a_log_says_nothing(tokenizer: Path, tmp_path: Path) -> None:
    path = write(tmp_path, {"request": {"messages": ASK}}).rename(tmp_path / "requests.log")
    assert load(path, tokenizer).ids


def test_the_draw_is_that_of_every_row_in_memory(tokenizer: Path, tmp_path: Path) -> None:
    """Rows without text and blank lines take no part in it."""
    rows: list[Any] = [{"prompt": [i % 200 + 2, i // 200 + 2]} for i in range(1000)]
    mixed = [item for row in rows for item in ({"input": "x"}, row)]
    path = write(tmp_path, *mixed, end="\n\n\n")
    wanted = sorted(random.Random(5).sample(range(1000), 16))
    result = load(path, tokenizer, seed=5)
    assert [list(ids) for ids in result.ids] == [rows[i]["prompt"] for i in wanted]


def test_a_long_log_is_not_held(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    line = json.dumps({"prompt": "the order " * 400, "id": "x" * 4000}) + "\n"
    path.write_text(line * 4000)
    load(path, tokenizer, samples=2)  # imports and caches
    tracemalloc.start()
    load(path, tokenizer, samples=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 30e6
    assert peak < 8e6
