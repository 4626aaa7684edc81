"""Load a tokenizer, and compare two: a target and its draft must encode text to equal ids."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_chat_template, read_json, read_json_if_any, require_regular
from whet.core.errors import CheckpointError
from whet.core.records.model import TokenizerIdentity

_FLAGS: Final = ("special", "lstrip", "rstrip", "single_word", "normalized")
# A pad token matters in training only: it never occurs in a prompt or an answer.
_ROLES: Final = ("bos_token", "unk_token")
_STEPS: Final = ("normalizer", "pre_tokenizer", "decoder")
_CUT: Final = 80
_SAVE: Final = "write it with AutoTokenizer.from_pretrained(…).save_pretrained(…)"
_OPTIONS: Final = {"local_files_only": True, "trust_remote_code": False, "model_max_length": 2**62}
"""Without a length the library warns at every text that is longer than the model reads."""
_GENERIC: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take tokenizer.json as it is; ``AutoTokenizer`` would import torch first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Ids by token, merges, flags of added tokens, roles, and steps as JSON with all defaults."""

    ids: dict[str, int]
    merges: tuple[str, ...]
    added: dict[str, str]
    roles: dict[str, str | None]
    steps: dict[str, str]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of transformers in ``folder``; ``CheckpointError`` if it cannot be read."""
    import transformers

    require_regular(folder)
    name = read_json_if_any(folder / "tokenizer_config.json").get("tokenizer_class")
    generic = name in _GENERIC and (folder / "tokenizer.json").exists()
    try:
        kind: Any = transformers.PreTrainedTokenizerFast if generic else transformers.AutoTokenizer
        return kind.from_pretrained(str(folder), **_OPTIONS)
    except Exception as error:
        # The tokenizers library raises the class Exception itself, so no narrower one would do.
        if type(error) is not Exception and not isinstance(error, OSError | ValueError | KeyError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({reason})",
            fix="check that tokenizer.json is there and complete",
        ) from error


def tokenizer_identity(path: Path) -> TokenizerIdentity:
    """The identity of the tokenizer in ``path``; ``CheckpointError`` without tokenizer.json."""
    v = read_vocabulary(path)
    ids = sorted(v.ids.items(), key=lambda item: (item[1], item[0]))
    around = [[(role, v.roles[role]) for role in _ROLES], [(s, v.steps[s]) for s in _STEPS]]
    content = [ids, v.merges, sorted(v.added.items()), *around]
    config = read_json_if_any(path / "config.json")
    text = config.get("text_config")  # where multimodal models keep these keys
    config = text | config if isinstance(text, dict) else config
    generation = read_json_if_any(path / "generation_config.json")  # an engine reads it first
    of_role = {role: v.ids.get(token or "") for role, token in v.roles.items()}
    begin = config.get("bos_token_id") if of_role["bos_token"] is None else of_role["bos_token"]
    ends = (generation.get("eos_token_id"), config.get("eos_token_id"), of_role["eos_token"])
    end: Any = next((each for each in ends if each is not None), [])
    end = end if isinstance(end, list) else [end]
    template = read_chat_template(path)
    return TokenizerIdentity(
        vocab_size=len(set(v.ids.values())),
        sha256=_sha256(json.dumps(content, ensure_ascii=True)),
        chat_template_sha256=None if template is None else _sha256(template),
        bos_token_id=begin if isinstance(begin, int) else None,
        eos_token_ids=tuple(sorted(i for i in end if isinstance(i, int))),
    )


def tokenizer_difference(
    a: Path, b: Path, *, names: tuple[str, str] = ("target", "draft"), serving: bool = False
) -> str | None:
    """Return one sentence on the first difference of two tokenizers, or None.

    They differ exactly where ``TokenizerIdentity.sha256`` does. ``serving`` adds what two servers
    show beyond that: the end token, the post-processor and the chat template.
    """
    one, two = map(read_vocabulary, (a, b))
    for_a_draft = {*_ROLES, *_STEPS}
    tables: dict[str, list[dict[Any, Any]]] = {
        "the id of token {!r} is": [one.ids, two.ids],
        "merge {} is": [dict(enumerate(each.merges)) for each in (one, two)],
        "the flags of added token {!r} are": [one.added, two.added],
        "{} is": [
            {k: x for k, x in {**v.roles, **v.steps}.items() if serving or k in for_a_draft}
            for v in (one, two)
        ],
    }
    for title, (here, there) in tables.items():
        keys = [key for key in {**here, **there} if here.get(key) != there.get(key)]
        if keys:
            count = f" ({len(keys)} differ)" if len(keys) > 1 else ""
            first, second = (
                "missing" if value is None else repr("plain" if value == "" else value)[:_CUT]
                for value in (here.get(keys[0]), there.get(keys[0]))
            )
            where = f"{first} in the {names[0]} and {second} in the {names[1]}"
            return f"{title.format(keys[0])} {where}{count}"
    if serving and len({(read_chat_template(path) or "").strip() for path in (a, b)}) > 1:
        return f"the {names[0]} and the {names[1]} have different chat templates"
    return None


def read_vocabulary(path: Path) -> Vocabulary:
    """Read tokenizer.json as the library writes it, and the roles of tokenizer_config.json."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json"
    if not file.exists():
        raise CheckpointError(f"{path} has no tokenizer.json", fix=_SAVE)
    read_json(file)  # names what is wrong with the file itself
    try:
        data = json.loads(Tokenizer.from_file(str(file)).to_str())
    except Exception as error:  # the library raises no narrower class
        raise CheckpointError(f"{file} is not a tokenizer ({error})", fix=_SAVE) from error
    vocab, added = data["model"]["vocab"], data["added_tokens"]
    if isinstance(vocab, list):  # Unigram: the index is the id
        vocab = {token: index for index, (token, _) in enumerate(vocab)}
    special = read_json_if_any(path / "special_tokens_map.json")
    config = read_json_if_any(path / "tokenizer_config.json")
    roles: dict[str, str | None] = {}
    for role in (*_ROLES, "eos_token"):
        token = config.get(role) or special.get(role)  # a plain string or a token object
        token = token.get("content") if isinstance(token, dict) else token
        roles[role] = None if token is None else str(token)
    return Vocabulary(
        ids={**vocab, **{token["content"]: token["id"] for token in added}},
        merges=tuple(" ".join(pair) for pair in data["model"].get("merges") or ()),
        added={token["content"]: " ".join(f for f in _FLAGS if token[f]) for token in added},
        roles=roles,
        steps={s: json.dumps(data[s], sort_keys=True) for s in (*_STEPS, "post_processor")},
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
