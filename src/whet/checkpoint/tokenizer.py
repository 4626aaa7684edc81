"""Load a tokenizer, and compare two: a target and its draft must encode text to equal ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json, read_json_if_any
from whet.core.errors import CheckpointError
from whet.core.records.model import TokenizerIdentity

_FLAGS: Final = ("special", "lstrip", "rstrip", "single_word", "normalized")
# A pad token matters in training only: it never occurs in a prompt or an answer.
_ROLES: Final = ("bos_token", "unk_token")
_STEPS: Final = ("normalizer", "pre_tokenizer", "decoder")
_CUT: Final = 80
_SAVE: Final = "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
_OTHER_FORMS: Final = {
    "tokenizer.model": _SAVE,
    "vocab.json": _SAVE,
    "tiktoken.model": "transformers.integrations.tiktoken.convert_tiktoken_to_fast(…)",
    "tekken.json": "transformers.integrations.mistral.convert_tekken_tokenizer(…)",
}
_Tables = Mapping[str, Mapping[Any, object]]
GENERIC: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take tokenizer.json as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """A tokenizer's content: ids by token (added ones included), merges, flags and roles.

    ``steps`` holds the processing around the vocabulary (``normalizer``, ``pre_tokenizer``,
    ``decoder``, ``post_processor``) as JSON text with every default written out.
    """

    ids: dict[str, int]
    merges: tuple[str, ...]
    added: dict[str, str]
    roles: dict[str, str | None]
    steps: dict[str, str]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of transformers in ``folder``; ``CheckpointError`` if it cannot be read."""
    try:
        return _tokenizer_class(folder).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        # The tokenizers library raises the class Exception itself, so no narrower one would do.
        if type(error) is not Exception and not isinstance(error, OSError | ValueError | KeyError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({reason})",
            fix="check that tokenizer.json is there and complete",
        ) from error


def _tokenizer_class(folder: Path) -> Any:
    """The class that ``AutoTokenizer`` takes; without its import of torch where it is generic."""
    name = read_json_if_any(folder / "tokenizer_config.json").get("tokenizer_class")
    if name in GENERIC and (folder / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def tokenizer_identity(path: Path) -> TokenizerIdentity:
    """The identity of the tokenizer in ``path``; ``CheckpointError`` without tokenizer.json."""
    vocabulary = read_vocabulary(path)
    content = [
        sorted(vocabulary.ids.items(), key=lambda item: (item[1], item[0])),
        vocabulary.merges,
        sorted(vocabulary.added.items()),
        [(role, vocabulary.roles[role]) for role in _ROLES],
        [(step, vocabulary.steps[step]) for step in _STEPS],
    ]
    template = read_chat_template(path)
    return TokenizerIdentity(
        vocab_size=len(set(vocabulary.ids.values())),
        sha256=_sha256(json.dumps(content, ensure_ascii=True)),
        chat_template_sha256=None if template is None else _sha256(template),
        bos_token_id=_bos(path, vocabulary),
        eos_token_ids=_eos(path, vocabulary),
    )


def tokenizer_difference(
    a: Path, b: Path, *, names: tuple[str, str] = ("target", "draft")
) -> str | None:
    """Return one sentence on the first difference of two tokenizers, or None.

    They differ exactly where ``TokenizerIdentity.sha256`` does. ``names`` are used in the sentence.
    """
    one, two = (_tables(read_vocabulary(path)) for path in (a, b))
    return _difference(one, two, names)


def serving_difference(a: Path, b: Path, *, names: tuple[str, str]) -> str | None:
    """Return one sentence on the first difference that two servers of these tokenizers show.

    Beyond ``tokenizer_difference``: the chat template, the end token and the post-processor. A
    draft model does not use these. None where there is no difference.
    """
    if (difference := tokenizer_difference(a, b, names=names)) is not None:
        return difference
    if (read_chat_template(a) or "").strip() != (read_chat_template(b) or "").strip():
        return f"the {names[0]} and the {names[1]} have different chat templates"
    one, two = (
        {"{} is": {"eos_token": each.roles["eos_token"], **each.steps}}
        for each in map(read_vocabulary, (a, b))
    )
    return _difference(one, two, names)


def _tables(vocabulary: Vocabulary) -> _Tables:
    """Return all that ids depend on, by the begin of a sentence on a difference."""
    return {
        "the id of token {!r} is": vocabulary.ids,
        "merge {} is": dict(enumerate(vocabulary.merges)),
        "the flags of added token {!r} are": vocabulary.added,
        "{} is": {
            **{role: vocabulary.roles[role] for role in _ROLES},
            **{step: vocabulary.steps[step] for step in _STEPS},
        },
    }


def _difference(one: _Tables, two: _Tables, names: tuple[str, str]) -> str | None:
    for title, here in one.items():
        there = two[title]
        keys = [key for key in {**here, **there} if here.get(key) != there.get(key)]
        if keys:
            first, second = (_shown(table.get(keys[0])) for table in (here, there))
            count = f" ({len(keys)} differ)" if len(keys) > 1 else ""
            return (
                f"{title.format(keys[0])} {first} in the {names[0]} and {second} in the {names[1]}"
                f"{count}"
            )
    return None


def _shown(value: object) -> str:
    return "missing" if value is None else repr("plain" if value == "" else value)[:_CUT]


def read_vocabulary(path: Path) -> Vocabulary:
    """Read tokenizer.json (BPE, WordPiece or Unigram) and the roles of tokenizer_config.json."""
    file = path / "tokenizer.json"
    if not file.exists():
        _refuse_other_forms(path)
    data = read_json(file)
    try:
        model, added = data["model"], data.get("added_tokens") or []
        vocab = model["vocab"]
        if isinstance(vocab, list):  # Unigram: the index is the id
            vocab = {token: index for index, (token, _) in enumerate(vocab)}
        ids = {str(token): int(index) for token, index in vocab.items()}
        ids |= {str(token["content"]): int(token["id"]) for token in added}
        flags = {
            str(token["content"]): " ".join(flag for flag in _FLAGS if token.get(flag))
            for token in added
        }
        merges = tuple(  # older libraries write "a b", newer ones ["a", "b"]
            each if isinstance(each, str) else " ".join(each) for each in model.get("merges") or ()
        )
        steps = _steps(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{file} is not a tokenizer that whet can read", fix=f"write it again with {_SAVE}"
        ) from error
    config = read_json_if_any(path / "tokenizer_config.json")
    special = read_json_if_any(path / "special_tokens_map.json")
    roles = {
        role: _content(config.get(role) or special.get(role)) for role in (*_ROLES, "eos_token")
    }
    return Vocabulary(ids=ids, merges=merges, added=flags, roles=roles, steps=steps)


def _refuse_other_forms(path: Path) -> None:
    """Name the form of a tokenizer that is not tokenizer.json, with the way to convert it."""
    for name, fix in _OTHER_FORMS.items():
        if (path / name).exists():
            raise CheckpointError(
                f"{path} has its tokenizer as {name} only",
                fix=f"write tokenizer.json once with {fix}",
            )


def _steps(data: dict[str, Any]) -> dict[str, str]:
    """The steps as the library writes them, with defaults that older files leave out."""
    from tokenizers import Tokenizer

    steps = {name: data.get(name) for name in (*_STEPS, "post_processor")}
    empty = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    try:
        written = json.loads(Tokenizer.from_str(json.dumps({**empty, **steps})).to_str())
    except Exception as error:  # the library raises no narrower class
        raise ValueError(str(error)) from error
    return {name: json.dumps(written[name], sort_keys=True) for name in steps}


def _content(role: Any) -> str | None:
    """A role is a plain string or a token object."""
    content = role.get("content") if isinstance(role, dict) else role
    return None if content is None else str(content)


def read_chat_template(path: Path) -> str | None:
    """The chat template of a checkpoint, or None; several are given as JSON."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8", errors="replace")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = read_json_if_any(path / name).get("chat_template")
        if template:
            return template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return None


def _bos(path: Path, vocabulary: Vocabulary) -> int | None:
    token = vocabulary.roles["bos_token"]
    if token is not None and token in vocabulary.ids:
        return vocabulary.ids[token]
    value = _text_config(path).get("bos_token_id")
    return value if isinstance(value, int) else None


def _eos(path: Path, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids that end an answer: an engine reads generation_config.json before config.json."""
    for config in (read_json_if_any(path / "generation_config.json"), _text_config(path)):
        value = config.get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            return tuple(sorted(each for each in ids if isinstance(each, int)))
    token = vocabulary.roles["eos_token"]
    return (vocabulary.ids[token],) if token in vocabulary.ids else ()


def _text_config(path: Path) -> dict[str, Any]:
    """config.json with the keys of its text part, which multimodal models keep apart."""
    config = read_json_if_any(path / "config.json")
    text = config.get("text_config")
    return text | config if isinstance(text, dict) else config


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
