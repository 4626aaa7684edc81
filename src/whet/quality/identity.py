"""Compare how a server reads and writes text with the baseline's tokenizer.

Prompts are sent as token ids, so a server with another tokenizer may score well and still read a
user's text as other tokens. Local files are compared before anything starts
(``checkpoint.tokenizer_difference``); this module sends about fifty texts to the running server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import load_tokenizer
from whet.checkpoint.chat import FIXED_DATE, ChatTemplate
from whet.client import Failure, post_many
from whet.core.records.quality_checks import TokenIdentity
from whet.quality.asking import Reply, describe

_CONCURRENCY: Final = 4
_TIMEOUT_S: Final = 120.0
_CUT: Final = 60
_DATE: Final = {"date_string": FIXED_DATE.strftime("%d %b %Y")}
PROBES: Final = (
    *("Hello, world!", " leading", "trailing ", "two  spaces", "a\tb\n\nc\r\n", "MiXeD cAsE ß İ"),
    *("0123456789", "1,234.50 EUR", "3.14e-10", "٣٤٥ ４２", "a1b2c3", "--- *** ###"),
    *("don't we'll they've", "e-mail@example.org", "https://x.org/?q=1&r=%20", "C:\\temp\\new"),
    *("def f(x):\n    return x**2", '{"a": [1, null, true]}', "<b>&amp;</b>", "$E=mc^2$"),
    *("naïve café Ångström", "cafe\u0301 vs caf\u00e9", "ﬁne ½ ² Ⅳ", "ŁódźĦ", "ΑΒΓ αβγ", "Привет"),
    *("日本語のテキスト", "中文文本", "한국어", "مرحبا", "שלום", "नमस्ते", "ไทย", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢"),
    *("🙂 👩‍👩‍👧 🏳️‍🌈", "\u200b\u200d\ufeff", "\u00a0\u3000", "“quotes” – — …", "<s> </s> <unk>"),
)
"""Texts that tokenizers are known to split differently."""


_FIELDS: Final = {"/tokenize": ("tokens",), "/detokenize": ("prompt", "text")}
"""The field of a reply: of vLLM, and of SGLang, which leaves specials out."""

Ids = list[int]
Body = Mapping[str, Any]
_Part = tuple[list[str], str | None]
"""Problems in words, and why something could not be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Server:
    """The server under test, and the baseline's tokenizer."""

    url: str
    model: str
    tokenizer: Any

    def encode(self, text: str, *, specials: bool = True) -> Ids:
        """Return the baseline's ids of a text."""
        return list(self.tokenizer(text, add_special_tokens=specials, verbose=False)["input_ids"])

    def show(self, value: Ids | str) -> str:
        """Return ids with the start of their text, or a text, short enough for a sentence."""
        if isinstance(value, str):
            return _shown(value)
        few = f"{list(value)}" if len(value) <= 8 else f"{list(value[:8])} and more"
        return f"{few} {_shown(self.tokenizer.decode(value))}"

    def compare(
        self, path: str, bodies: Sequence[Body], wanted: Sequence[Ids | str], what: str
    ) -> _Part:
        """Post ``bodies`` and compare a field of the replies with ``wanted``.

        ``what`` begins the sentence of a problem.
        """
        full = [{"model": self.model, **body} for body in bodies]
        replies = post_many(self.url, path, full, concurrency=_CONCURRENCY, timeout_s=_TIMEOUT_S)
        failures, pairs = [], []
        for reply, there in zip(replies, wanted, strict=True):
            here = _field(reply, _FIELDS[path])
            if isinstance(here, Failure):
                failures.append(describe(here))
            elif here != there:
                pairs.append((self.show(here), self.show(there)))
        gap = f"the server does not answer {path} ({failures[0]})" if failures else None
        if not pairs:
            return [], gap
        here, there = pairs[0]
        share = f"{len(pairs)} of {len(wanted)}"
        return [f"{what} ({share}): {here} instead of {there} by the baseline's tokenizer"], gap


def _field(reply: Reply, names: Sequence[str]) -> Any:
    """Return the first of the named fields that a reply has, or its failure."""
    if isinstance(reply, Failure):
        return reply
    gap = Failure(error="bad_json", detail=f"a reply without {' or '.join(names)}")
    return next((reply[name] for name in names if reply.get(name)), gap)


def token_identity(
    server_url: str,
    model: str,
    tokenizer_folder: Path,
    texts: Sequence[str],
    *,
    chats: Sequence[Sequence[Body]] = (),
    variables: Mapping[str, Any] | None = None,
) -> TokenIdentity:
    """Compare the server's tokens with those of the baseline's folder.

    Compares the ids of ``texts`` and ``PROBES``, the text of these ids, and the ids of ``chats`` by
    the server's own template with ``variables``. A chat in which the server writes today's date is
    left out. ``checked`` counts the texts, ``missing`` says what the server did not answer. Raises
    ``CheckpointError`` if the folder has no tokenizer.
    """
    server = _Server(url=server_url, model=model, tokenizer=load_tokenizer(tokenizer_folder))
    every = [*PROBES, *texts]
    ids = [server.encode(text) for text in every]
    texts_sent = [{"prompt": text, "add_special_tokens": True} for text in every]
    ids_sent = [{"tokens": each, "skip_special_tokens": False} for each in ids]
    decoded = [str(server.tokenizer.decode(each)) for each in ids]
    parts = [
        server.compare("/tokenize", texts_sent, ids, "a text is read as other tokens"),
        server.compare("/detokenize", ids_sent, decoded, "token ids are written as other text"),
        _compare_chats(server, chats, variables or {}),
    ]
    gaps = dict.fromkeys(gap for _, gap in parts if gap is not None)
    return TokenIdentity(
        checked=0 if parts[0][1] else len(every),
        problems=tuple(problem for problems, _ in parts for problem in problems),
        missing="; ".join(gaps) or None,
    )


def _compare_chats(
    server: _Server, chats: Sequence[Sequence[Body]], variables: Mapping[str, Any]
) -> _Part:
    """Compare the ids of chats by the server's own template, with the assistant's turn open."""
    template = ChatTemplate(server.tokenizer, variables=variables)
    if not template.source:
        return [], None
    if template.takes_date:
        template = template.with_variables({**_DATE, **variables})
    undated = [template.folded(chat) for chat in chats if not template.shows_date(chat)]
    if not undated:
        return [], None
    ids = [server.encode(text, specials=False) for text, _ in undated]
    more = {"chat_template_kwargs": template.variables} if template.variables else {}
    bodies = [{"messages": chat, "add_generation_prompt": True, **more} for _, chat in undated]
    what = "a chat by the server's template is read as other tokens"
    return server.compare("/tokenize", bodies, ids, what)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _CUT else text[:_CUT] + "…")
