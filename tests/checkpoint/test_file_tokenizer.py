"""The tokenizer that is read from its files, beside the one that transformers makes of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from whet.checkpoint.chat import ChatTemplate
from whet.checkpoint.file_tokenizer import FileTokenizer, open_tokenizer
from whet.checkpoint.tokenizer import load_tokenizer
from whet.core.errors import CheckpointError
from whet.demo import pair_paths
from whet.requests import LoggedRequest

TEXTS = (
    "", " ", "a  b\n\n c\t", "Where is order 4711?", "naïve e\u0301 你好 \U0001f600\u00a0x\r\n",
    "<|user|>x<|end|> <|bos|>", "a<|system|><|assistant|>\n", "<|none|>",
)  # fmt: skip
TEMPLATES = {
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=1, sort_keys=True) }}",
    "tools": "{{ tools | tojson if tools else 'none' }}{{ bos_token }}{{ documents is none }}",
    "loop": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}"
    "{% endfor %}",
    "generation": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "blocks": "a\n  {% if add_generation_prompt %}\nb\n  {% endif %}\nc{{ mood }}",
    "date": "{{ strftime_now('%d %b %Y') }}",
}
TOOL = {"type": "function", "function": {"name": "find", "description": "<d>", "parameters": {}}}
CHAT = LoggedRequest(
    place="",
    messages=({"role": "user", "content": "é < & 'q'"}, {"role": "assistant", "content": "Hi"}),
    tools=(TOOL,),
    chat_template_kwargs={"mood": "calm"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(pair_paths()[0] / name, tmp_path)
    return tmp_path


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def written_flags(folder: Path) -> dict[str, Any]:
    """The added tokens of tokenizer.json, as tokenizer_config.json has them in Llama 3."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return {str(token.pop("id")): token for token in added}


@pytest.mark.parametrize("begins", [False, True])
def test_ids_and_tokens_are_those_of_transformers(folder: Path, *, begins: bool) -> None:
    if begins:  # as Llama 3 writes its first token
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        first = ("<|bos|>", tokenizer.token_to_id("<|bos|>"))
        tokenizer.post_processor = TemplateProcessing(
            single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[first]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
    own, theirs = open_tokenizer(folder), load_tokenizer(folder)
    assert isinstance(own, FileTokenizer)
    for text in TEXTS:
        assert own.encode(text) == theirs.encode(text)
        plain = own.encode(text, add_special_tokens=False)
        assert plain == theirs.encode(text, add_special_tokens=False)
    assert own.get_vocab() == theirs.get_vocab()
    assert own.get_added_vocab() == theirs.get_added_vocab()
    assert list(own.all_special_tokens) == theirs.all_special_tokens
    assert (len(own), own.special_tokens_map) == (len(theirs), theirs.special_tokens_map)


@pytest.mark.parametrize("template", [None, *TEMPLATES.values()], ids=["own", *TEMPLATES])
def test_chats_are_rendered_as_transformers_does(folder: Path, template: str | None) -> None:
    own, theirs = (
        ChatTemplate(each(folder), template) for each in (open_tokenizer, load_tokenizer)
    )
    assert own.render(CHAT) == theirs.render(CHAT) != ""


def test_a_prompt_is_neither_cut_nor_padded(folder: Path) -> None:
    """tokenizer.json may say both; transformers undoes them for a single text."""
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "<|pad|>",
    }  # fmt: skip
    edit(folder / "tokenizer.json", lambda data: data.update(truncation=cut, padding=pad))
    own = open_tokenizer(folder)
    assert isinstance(own, FileTokenizer)
    for text in TEXTS:
        assert own.encode(text) == load_tokenizer(folder).encode(text)


def test_the_template_file_comes_first_and_equal_flags_are_no_change(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    flags = written_flags(folder)
    edit(folder / "tokenizer_config.json", lambda data: data.update(added_tokens_decoder=flags))
    own, theirs = open_tokenizer(folder), load_tokenizer(folder)
    assert isinstance(own, FileTokenizer)
    assert own.chat_template == theirs.chat_template == "from the file"


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"tokenizer_class": None},
        {"bos_token": "<s>"},
        {"extra_special_tokens": ["<|new|>"]},
        {"image_token": "<|image|>"},
        {"split_special_tokens": True},
        {"chat_template": [{"name": "default", "template": "x"}]},
        {"extra_special_tokens": {"image_token": "<|end|>"}},
    ],
    ids=str,
)
def test_what_transformers_may_change_is_read_by_it(folder: Path, change: dict[str, Any]) -> None:
    (folder / "special_tokens_map.json").unlink()
    edit(folder / "tokenizer_config.json", lambda data: data.update(change))
    assert not isinstance(open_tokenizer(folder), FileTokenizer)


def test_other_flags_of_an_added_token_are_read_by_transformers(folder: Path) -> None:
    flags = written_flags(folder)
    next(iter(flags.values()))["lstrip"] = True
    edit(folder / "tokenizer_config.json", lambda data: data.update(added_tokens_decoder=flags))
    assert not isinstance(open_tokenizer(folder), FileTokenizer)


def test_files_that_differ_are_read_by_transformers(folder: Path) -> None:
    edit(folder / "special_tokens_map.json", lambda data: data.update(eos_token="<|pad|>"))
    assert not isinstance(open_tokenizer(folder), FileTokenizer)


def test_a_broken_file_is_reported_as_by_transformers(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "Future"}}')
    with pytest.raises(CheckpointError, match=r"cannot be read \(.*check that tokenizer\.json"):
        open_tokenizer(folder)
