"""A server with another tokenizer or template is told in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from lab.faults import swap_tokens  # noqa: E402

from tests.checkpoint_factory import write_json  # noqa: E402
from tests.quality.model_server import Body, Reply, model_server  # noqa: E402
from whet.demo import pair_paths  # noqa: E402
from whet.quality.identity import PROBES, token_identity  # noqa: E402

TARGET, _ = pair_paths()
TEXTS = ("Order 1203 was late.", "naïve 日本語 🙂")


def serving(folder: Path) -> Callable[[Body], Reply]:
    """The three endpoints as vLLM answers them, by the tokenizer of ``folder``."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

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
        ids = tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
        return 200, {"tokens": ids}

    return answer


def ask(answer: Callable[[Body], Reply], folder: Path = TARGET, **more: Any) -> Any:
    with model_server(answer) as (url, _):
        return token_identity(url, "m", folder, TEXTS, **more)


def test_the_same_tokenizer_has_no_problem_and_every_text_is_checked() -> None:
    found = ask(serving(TARGET), chats=[[{"role": "user", "content": "What is 12 + 30?"}]])
    assert (found.problems, found.missing) == ((), None)
    assert found.checked == len(PROBES) + len(TEXTS)


@pytest.mark.parametrize(("a", "b"), [("1", "2"), ("er", "Ġthe"), ("\u00e2", "\u00e3")])
def test_a_swapped_entry_is_seen_in_what_is_read_and_written(
    a: str, b: str, tmp_path: Path
) -> None:
    source = write_pairs(tmp_path / "good")
    read, written = ask(serving(swap_tokens(source, tmp_path / "bad", a, b)), source).problems
    assert read.startswith("a text is read as other tokens (")
    assert written.startswith("token ids are written as other text (")


STEPS: dict[str, Any] = {
    "normalizer": {"type": "NFKC"},
    "pre_tokenizer": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    },
    "decoder": {"type": "Fuse"},
}


@pytest.mark.parametrize("step", STEPS)
def test_another_step_around_the_same_vocabulary_is_seen(step: str, tmp_path: Path) -> None:
    source = write_pairs(tmp_path / "good")
    other = shutil.copytree(source, tmp_path / "other")
    data = json.loads((source / "tokenizer.json").read_text())
    write_json(other / "tokenizer.json", data | {step: STEPS[step]})
    assert ask(serving(other), source).problems


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


def test_text_read_otherwise_is_told_though_every_id_is_written_right(tmp_path: Path) -> None:
    """A server that puts its beginning token before every text."""
    inner = serving(TARGET)

    def answer(body: Body) -> Reply:
        status, reply = inner(body)
        if body.get("add_special_tokens"):
            reply["tokens"] = [1, *reply["tokens"]]
        return status, reply

    (problem,) = ask(answer).problems
    assert problem.startswith("a text is read as other tokens (")
    assert ": [1, " in problem


def test_another_chat_template_is_told(tmp_path: Path) -> None:
    other = shutil.copytree(TARGET, tmp_path / "other")
    config = json.loads((TARGET / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|end|>", "<|end|>\n")
    write_json(other / "tokenizer_config.json", config)
    (problem,) = ask(serving(other), chats=[[{"role": "user", "content": "Hi"}]]).problems
    assert problem.startswith("a chat by the server's template is read as other tokens (1 of 1)")


def test_a_server_without_the_endpoints_is_missing_and_no_problem() -> None:
    found = ask(lambda body: (404, {"detail": "Not Found"}))
    assert (found.checked, found.problems) == (0, ())
    assert "does not answer /detokenize (http_404" in (found.missing or "")
