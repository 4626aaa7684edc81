"""A server with another tokenizer, template or end of sequence is told in words."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from tests.checkpoint_factory import write_json, write_tokenizer  # noqa: E402
from tests.quality.model_server import Body, Reply, model_server  # noqa: E402
from whet.core.records import TaskAnswer  # noqa: E402
from whet.demo.faults import swap_tokens, wrong_eos  # noqa: E402
from whet.demo.inputs import pair_paths  # noqa: E402
from whet.quality import identity  # noqa: E402
from whet.quality.data import Message  # noqa: E402
from whet.quality.identity import ending_shift, served_identity  # noqa: E402
from whet.quality.token_units import vocabulary_units  # noqa: E402

TARGET, _ = pair_paths()
TEXTS = ("Order 1203 was late.", "naïve 日本語 🙂")


def serving(folder: Path, *, ends: set[int] | None = None) -> Callable[[Body], Reply]:
    """The three endpoints as vLLM answers them, by the tokenizer of ``folder``."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    stops = {tokenizer.eos_token_id} if ends is None else ends

    def answer(body: Body) -> Reply:
        if "tokens" in body:
            return 200, {"prompt": tokenizer.decode(body["tokens"])}
        if "messages" in body:
            text = tokenizer.apply_chat_template(
                body["messages"],
                tokenize=False,
                add_generation_prompt=body["add_generation_prompt"],
            )
            return 200, {"tokens": tokenizer(text, add_special_tokens=False)["input_ids"]}
        if "allowed_token_ids" in body:
            (token,) = body["allowed_token_ids"]
            ids = [token] if token in stops else [token] * body["max_tokens"]
            reason = "stop" if token in stops else "length"
            return 200, {"choices": [{"text": "", "token_ids": ids, "finish_reason": reason}]}
        ids = tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
        return 200, {"tokens": ids}

    return answer


def ask(answer: Callable[[Body], Reply], folder: Path = TARGET, **more: Any) -> Any:
    with model_server(answer) as (url, _):
        return served_identity(url, "m", folder, TEXTS, **more)


def test_the_same_tokenizer_has_no_problem_and_every_id_of_text_is_checked() -> None:
    found = ask(serving(TARGET), chats=[[Message(role="user", content="What is 12 + 30?")]])
    assert (found.problems, found.missing) == ((), None)
    assert found.checked == 4096 - 13  # UTF-8 never holds C0, C1 and F5 to FF (RFC 3629)


SWAPS = [
    ("1", "2"),
    ("a", "aa"),  # in a row, their text is the same in either order
    ("er", "Ġthe"),
    ("\u0122", "\u0123"),  # the bytes 80 and 81: either alone decodes to U+FFFD
    ("\u00e2", "\u00e3"),  # first bytes of characters of three
]


@pytest.mark.parametrize(("a", "b"), SWAPS)
@pytest.mark.parametrize("piece", [64, 4096])
def test_one_swapped_entry_is_named_wherever_it_is(
    a: str, b: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_PIECE", piece)
    source = write_pairs(tmp_path / "good")
    ids = transformers.AutoTokenizer.from_pretrained(source).get_vocab()
    found = ask(serving(swap_tokens(source, tmp_path / "bad", a, b)), source)
    named = [p for p in found.problems if p.startswith(("token id", "the run of", "the text of"))]
    told = {int(number) for problem in named for number in re.findall(r"\d+", problem)}
    assert {ids[a], ids[b]} <= told
    if len(a.encode()) == 1:
        assert all(f"token id {i} is" in " ".join(named) for i in (ids[a], ids[b]))


def write_pairs(folder: Path) -> Path:
    """A byte-level vocabulary with ``a``, ``aa``, ``er`` and ``Ġthe`` next to each other."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "a"), ("e", "r"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
    entries = [letter for letter in letters if letter != "a"]
    entries += ["a", *("".join(pair) for pair in merges)]
    core = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(entries)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|end|>", special=True)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    fast.save_pretrained(folder)
    return folder


def test_all_entries_moved_are_told_in_a_few_sentences(tmp_path: Path) -> None:
    other = write_pairs(tmp_path / "other")
    found = ask(serving(other))
    assert found.problems[4] == "and more, in 1 of 1 parts of the vocabulary"
    assert len(found.problems) <= 10


def test_byte_fallback_entries_are_told_apart(tmp_path: Path) -> None:
    """The form of Llama 2: bytes as ``<0x80>``, words with a leading ``▁``."""
    from tokenizers import Tokenizer, decoders, models

    names = ["<unk>", "|", "▁", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = [(name, -float(place)) for place, name in enumerate(names)]
    core = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    source = tmp_path / "good"
    transformers.PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(source)
    units = vocabulary_units(transformers.AutoTokenizer.from_pretrained(source))
    assert sum(unit.told for unit in units) == len(names) - 13
    found = ask(serving(swap_tokens(source, tmp_path / "bad", "<0x80>", "<0x81>")), source)
    runs = [problem for problem in found.problems if problem.startswith("the run of token ids")]
    assert runs
    assert all(re.search(r"\b(132|133)\b", run) for run in runs)


def test_text_read_otherwise_is_told_though_every_id_is_written_right(tmp_path: Path) -> None:
    """A server that puts its beginning token before every text."""
    inner = serving(TARGET)

    def answer(body: Body) -> Reply:
        status, reply = inner(body)
        if body.get("add_special_tokens"):
            reply["tokens"] = [1, *reply["tokens"]]
        return status, reply

    (problem,) = ask(answer).problems
    assert problem.startswith("a held-out text is read as other tokens (2 of 2): after ''")
    assert "is id 1 and" in problem


def test_another_chat_template_is_told(tmp_path: Path) -> None:
    other = shutil.copytree(TARGET, tmp_path / "other")
    config = json.loads((TARGET / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|end|>", "<|end|>\n")
    write_json(other / "tokenizer_config.json", config)
    (problem,) = ask(serving(other), chats=[[Message(role="user", content="Hi")]]).problems
    assert problem.startswith("a chat by the server's template is read as other tokens (1 of 1)")


def test_an_end_that_does_not_end_and_one_that_does_are_told(tmp_path: Path) -> None:
    found = ask(serving(wrong_eos(TARGET, tmp_path / "bad")))
    assert found.problems == (
        "token id 2 ('<|end|>') does not end an answer, and does on the baseline",
        "token id 5 ('<|assistant|>') ends an answer, and does not on the baseline",
    )


def test_an_end_added_beside_the_true_one_is_told() -> None:
    (problem,) = ask(serving(TARGET, ends={2, 4})).problems
    assert problem.startswith("token id 4 ('<|user|>') ends an answer")


def test_several_ends_of_the_generation_config_are_all_ends(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_tokenizer(source)
    write_json(source / "generation_config.json", {"eos_token_id": [0, 1]})
    assert ask(serving(source, ends={0, 1}), source).problems == ()
    (problem,) = ask(serving(source, ends={1}), source).problems
    assert problem.startswith("token id 0 ('<|start|>') does not end")


def test_a_server_without_the_endpoints_is_missing_and_no_problem() -> None:
    found = ask(lambda body: (404, {"detail": "Not Found"}))
    assert (found.checked, found.problems) == (0, ())
    assert "does not answer /detokenize (http_404" in (found.missing or "")


def test_a_server_that_forces_no_token_leaves_the_end_unknown() -> None:
    inner = serving(TARGET)

    def answer(body: Body) -> Reply:
        if "allowed_token_ids" in body:
            return 200, {"choices": [{"text": "so", "finish_reason": "length"}]}
        return inner(body)

    found = ask(answer)
    assert found.problems == ()
    assert "not told for 6 of 6" in (found.missing or "")
    assert found.checked == 4083


def answers(*rows: tuple[str | None, int | None]) -> list[TaskAnswer]:
    return [
        TaskAnswer(id=str(i), task="t", text="", right=True, finish_reason=reason, tokens=tokens)
        for i, (reason, tokens) in enumerate(rows)
    ]


def test_answers_that_no_longer_end_are_significant_from_six_on() -> None:
    """McNemar's exact p of n lost and none gained is 2^(1-n): 0.0625 at five, 0.03125 at six."""
    before = answers(*[("stop", 9)] * 8)
    five = ending_shift(answers(*[("length", 40)] * 5, *[("stop", 9)] * 3), before)
    assert (five.lost, five.gained, five.p_value, five.problem) == (5, 0, 0.0625, None)
    six = ending_shift(answers(*[("length", 40)] * 6, *[("stop", 9)] * 2), before)
    assert six.p_value == 0.03125
    assert (six.problem or "").startswith("6 of 8 answers that ended by themselves")
    other_way = ending_shift(before, answers(*[("length", 40)] * 8))
    assert (other_way.gained, other_way.problem) == (8, None)


def test_lengths_are_compared_where_both_sides_ended() -> None:
    before = answers(("stop", 9), ("stop", 9), ("stop", 9), ("stop", 9), ("length", 9))
    here = answers(("stop", 3), ("stop", 3), ("stop", 12), ("stop", 9), ("stop", 2))
    found = ending_shift(here, before)
    assert (found.pairs, found.shorter, found.longer) == (5, 2, 1)
    assert found.p_length == 1.0  # two of three heads


def test_answers_without_a_word_on_their_end_are_no_pair() -> None:
    found = ending_shift(answers((None, 3)), answers(("stop", 3)))
    assert (found.pairs, found.p_value, found.problem) == (0, None, None)
    assert found.missing is not None
