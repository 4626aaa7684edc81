"""Held-out text in windows, against what the tokenizer of the demo pair says directly."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.quality.files import write_lines, write_tokenizer
from whet.core.errors import UsageError
from whet.core.spec import QualitySpec
from whet.demo import pair_paths
from whet.quality.data import HeldoutDocument
from whet.quality.heldout import heldout_ids, read_heldout
from whet.quality.prompts import Encoder

TEXT = " = Order = \n\nThe lamp was sent on 3 May, and came back.\n" * 40


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(pair_paths()[0])


@pytest.fixture(scope="module")
def stream() -> list[int]:
    from tokenizers import Tokenizer

    core = Tokenizer.from_file(str(pair_paths()[0] / "tokenizer.json"))
    ids: list[int] = core.encode(TEXT).ids
    return ids


def windows(size: int, **more: Any) -> QualitySpec:
    return QualitySpec(protocol="windows", max_tokens=size, **more)


def test_a_text_is_one_stream_in_windows_without_its_tail(
    tmp_path: Path, encoder: Encoder, stream: list[int]
) -> None:
    path = tmp_path / "wiki.test.raw"
    path.write_text(TEXT, encoding="utf-8")
    found = heldout_ids(path, encoder, windows(64))
    assert len(stream) % 64
    assert [len(ids) for ids in found] == [64] * (len(stream) // 64)
    assert [token for ids in found for token in ids] == stream[: len(stream) // 64 * 64]


def test_a_text_of_exactly_one_window_is_used_whole(
    tmp_path: Path, encoder: Encoder, stream: list[int]
) -> None:
    path = tmp_path / "one.txt"
    path.write_text(TEXT, encoding="utf-8")
    assert heldout_ids(path, encoder, windows(len(stream))) == [tuple(stream)]
    with pytest.raises(UsageError, match=f"{len(stream)} tokens, less than one window"):
        heldout_ids(path, encoder, windows(len(stream) + 1))


def test_rows_are_joined_by_two_line_ends_and_empty_ones_count(
    tmp_path: Path, encoder: Encoder
) -> None:
    rows = ["", " = Title = \n", "", " Some words of the article .\n", ""] * 30
    lines = write_lines(tmp_path / "wikitext.jsonl", [{"text": row} for row in rows])
    plain = tmp_path / "wikitext.txt"
    plain.write_text("\n\n".join(rows), encoding="utf-8")
    found = heldout_ids(lines, encoder, windows(50))
    assert found == heldout_ids(plain, encoder, windows(50))


def test_a_tokenizer_that_opens_with_a_token_does_so_once(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer")
    data = json.loads((folder / "tokenizer.json").read_text())
    bos = next(one["id"] for one in data["added_tokens"] if one["content"] == "<s>")
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    path = tmp_path / "a.txt"
    path.write_text("a" * 31, encoding="utf-8")
    found = heldout_ids(path, Encoder(folder), windows(8))
    assert [ids.count(bos) for ids in found] == [1, 0, 0, 0]
    assert found[0][0] == bos


def test_more_windows_than_wanted_are_thinned_evenly(
    tmp_path: Path, encoder: Encoder, stream: list[int]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    whole = heldout_ids(path, encoder, windows(16))
    found = heldout_ids(path, encoder, windows(16, max_documents=3))
    assert found == [whole[0], whole[len(whole) // 3], whole[2 * len(whole) // 3]]


def test_line_ends_are_left_as_the_file_has_them(tmp_path: Path, encoder: Encoder) -> None:
    for name, text in (("unix.txt", "a b\n" * 50), ("dos.txt", "a b\r\n" * 50)):
        (tmp_path / name).write_bytes(text.encode())
    unix, dos = (heldout_ids(tmp_path / f"{n}.txt", encoder, windows(20)) for n in ("unix", "dos"))
    assert unix[0] != dos[0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chats.jsonl", '{"text": "a"}\n{"messages": []}\n', 'line 2 has no "text".*not chats'),
        ("torn.jsonl", '{"text": "a"\n', "line 1 is not JSON"),
        ("blank.txt", " \n\n", "holds no text"),
        ("latin.txt", b"caf\xe9", "cannot be read"),
    ],
)
def test_a_file_that_is_no_stream_is_refused_with_its_place(
    tmp_path: Path, encoder: Encoder, name: str, content: str | bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=words):
        heldout_ids(path, encoder, windows(8))


def test_a_missing_file_is_said(tmp_path: Path, encoder: Encoder) -> None:
    with pytest.raises(UsageError, match="no held-out text at"):
        heldout_ids(tmp_path / "none.txt", encoder, windows(8))


def test_a_window_of_one_token_predicts_nothing(tmp_path: Path, encoder: Encoder) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(UsageError, match="predicts nothing"):
        heldout_ids(path, encoder, windows(1))


def test_documents_are_the_default_and_leave_room_for_the_token_asked(
    tmp_path: Path, encoder: Encoder
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": TEXT}, {"text": "The lamp was sent."}])
    found = heldout_ids(path, encoder, QualitySpec(max_tokens=32))
    assert len(found[0]) == 31
    assert len(found) == 2


def test_windows_belong_to_the_article_in_which_they_begin(
    tmp_path: Path, encoder: Encoder
) -> None:
    articles = [
        f"\n = Title {number} = \n\n = = Part = = \n"
        + "The lamp was sent and came back .\n" * length
        for number, length in enumerate((30, 50, 10, 40))
    ]
    path = tmp_path / "wiki.txt"
    path.write_text("".join(articles), encoding="utf-8")
    documents, sources = read_heldout(path, encoder, windows(32))
    ends, at = [], 0
    for number in range(len(articles)):
        at = len(encoder.document(HeldoutDocument(text="".join(articles[: number + 1]))))
        ends.append(at)
    starts = range(0, 32 * len(documents), 32)
    # a window may begin within a token of the seam
    clear = [i for i, start in enumerate(starts) if min(abs(start - end) for end in ends) > 4]
    assert len(clear) > 0.8 * len(documents)
    assert [sources[i] for i in clear] == [sum(end <= starts[i] for end in ends) for i in clear]
    assert set(sources) == {0, 1, 2, 3}


def test_lines_without_titles_are_the_sources(tmp_path: Path, encoder: Encoder) -> None:
    text = "The lamp was sent and came back . " * 40
    lines = write_lines(tmp_path / "text.jsonl", [{"text": text}] * 3)
    _, sources = read_heldout(lines, encoder, windows(32))
    assert set(sources) == {0, 1, 2}
    assert list(sources) == sorted(sources)
    plain = tmp_path / "text.txt"
    plain.write_text(text, encoding="utf-8")
    assert set(read_heldout(plain, encoder, windows(32))[1]) == {0}
    _, sources = read_heldout(lines, encoder, QualitySpec(max_tokens=64))
    assert sources == (0, 1, 2)
