"""A tokenizer from its files, without transformers, whose import takes a second.

Only for folders in which transformers would do the same: a generic class, tokenizer.json, and
special tokens that tokenizer.json has already. The rest is ``load_tokenizer``'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whet.checkpoint.files import read_json_if_any, require_regular
from whet.checkpoint.thinking import GENERATION
from whet.checkpoint.tokenizer import GENERIC, load_tokenizer
from whet.core.errors import CheckpointError

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import AddedToken, Tokenizer

_NAMED: Final = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_EXTRA: Final = ("additional_special_tokens", "extra_special_tokens")
_KNOWN: Final = {
    *_NAMED,
    *_EXTRA,
    *("tokenizer_class", "chat_template", "added_tokens_decoder", "model_max_length", "backend"),
    *("clean_up_tokenization_spaces", "model_input_names", "padding_side", "truncation_side"),
    *("is_local", "local_files_only"),
}
"""Keys of tokenizer_config.json that change no ids beyond what is read here."""
_OTHERS: Final = ("added_tokens.json", "additional_chat_templates")
_FAULTS: Final = (CheckpointError, OSError, ValueError, TypeError, LookupError, AttributeError)
_FLAGS: Final = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTokenizer:
    """The part of transformers' fast tokenizer that whet uses to write and read prompts."""

    backend_tokenizer: Tokenizer
    special_tokens_map: Mapping[str, str]
    all_special_tokens: Sequence[str]
    chat_template: str | None
    is_fast: bool = True

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def get_vocab(self) -> dict[str, int]:
        """Ids by token, added ones included."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def get_added_vocab(self) -> dict[str, int]:
        """Ids of the added tokens."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return {token.content: index for index, token in sorted(added.items())}

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        chat_template: str | None,
        tokenize: bool,
        **variables: Any,
    ) -> str:
        """The text of a chat, as transformers renders it."""
        source = chat_template or self.chat_template
        if tokenize or source is None or not messages:
            raise ValueError("a chat is rendered as text, from a template and its messages")
        values = {"add_generation_prompt": False, "documents": None, **self.special_tokens_map}
        return _compile(source).render(values | variables, messages=messages, tools=tools)


def open_tokenizer(folder: Path) -> Any:
    """The tokenizer in ``folder``, of transformers only where the files do not say all.

    Both have what ``FileTokenizer`` has. Raises as ``load_tokenizer``, which reports what is wrong
    with the files.
    """
    require_regular(folder)
    try:
        own = _from_files(folder)
    except Exception as error:
        # The tokenizers library raises the class Exception itself, so no narrower one would do.
        if type(error) is not Exception and not isinstance(error, _FAULTS):
            raise
        own = None
    return own or load_tokenizer(folder)


def _from_files(folder: Path) -> FileTokenizer | None:
    """None where transformers may add or change tokens."""
    from tokenizers import AddedToken, Tokenizer

    config = read_json_if_any(folder / "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder")
    roles = {} if decoder else read_json_if_any(folder / "special_tokens_map.json")
    contradicted = any(config.get(name, role) != role for name, role in roles.items())
    config |= roles
    if contradicted or config.get("tokenizer_class") not in GENERIC or config.keys() - _KNOWN:
        return None
    if not (folder / "tokenizer.json").exists() or any((folder / n).exists() for n in _OTHERS):
        return None
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()  # its file may set both; a prompt is cut and padded by neither
    backend.no_padding()
    added = {index: _flags(token) for index, token in backend.get_added_tokens_decoder().items()}
    stated = {int(index): _flags(AddedToken(**token)) for index, token in (decoder or {}).items()}
    named = {name: _content(config[name]) for name in _NAMED if config.get(name) is not None}
    special = [*named.values(), *(_content(each) for k in _EXTRA for each in config.get(k) or ())]
    if (stated and stated != added) or set(special) - {content for content, *_ in added.values()}:
        return None
    file, template = folder / "chat_template.jinja", config.get("chat_template")
    template = file.read_text(encoding="utf-8") if file.exists() else template
    if not isinstance(template, str | None):
        return None
    return FileTokenizer(
        backend_tokenizer=backend,
        special_tokens_map=named,
        all_special_tokens=tuple(dict.fromkeys(special)),
        chat_template=template,
    )


def _content(token: Any) -> str:
    """A token is a plain string or an object with its flags."""
    return str(token["content"] if isinstance(token, dict) else token)


def _flags(token: AddedToken) -> tuple[object, ...]:
    return tuple(getattr(token, flag) for flag in _FLAGS)


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    """Return the template in a sandbox, with what transformers gives a chat template.

    Its block ``generation`` marks the text of an assistant for training, and is a scope here.
    """

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's escapes HTML

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(GENERATION.sub(r"\1\2with\3", source))
