"""What llama-server's endpoints say of it: settings, counters, ids of tokens."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Final

from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED
from whet.core.errors import EngineStartError
from whet.core.records.evidence import Declared
from whet.engines.probe import NoAnswer, json_page, model_cards, request

COUNTERS: Final = {
    "llamacpp:tokens_predicted_total": GENERATED,
    "llamacpp:spec_decode_num_drafts_total": DRAFTS,
    "llamacpp:spec_decode_num_draft_tokens_total": DRAFT_TOKENS,
    "llamacpp:spec_decode_num_accepted_tokens_total": ACCEPTED,
}


def read_declared(base_url: str) -> Declared:
    """GET ``/props`` and ``/v1/models``; an endpoint that is missing leaves its part empty.

    Raises ``EngineLostError`` where the server does not answer at all.
    """
    props = json_page(base_url, "/props")
    generation = props.get("default_generation_settings") or {}
    settings = {
        "max_num_seqs": props.get("total_slots"),
        "max_model_len": generation.get("n_ctx"),
    }
    return Declared(
        version=props.get("build_info"),
        config=tuple((name, str(value)) for name, value in settings.items() if value is not None),
        cache=(),
        models=tuple(str(card.get("id")) for card in model_cards(base_url)),
    )


TEXTS: Final = (
    "The order of 12 March was shipped on time.",
    " leading space,  two spaces\tand a tab\n\nand lines\r\n",
    "It's 3.14159, 1,234,567 or 0x1F; we'll see: they'd say I'M NOT",
    "naïve café, Straße, Größe: 東京で 2024年, Привет мир, 🙂👍🏽",
    'def f(x):\n    return {"a": [x ** 2, -1e-9]}  # code\n',
    "...!!! ---- $5.00 (50%) a@b.co #tag https://example.org/?q=1&r=2",
)
"""Spaces, digits, contractions, other scripts, code and marks: where pre-tokenizers differ."""
_TIMEOUT_S: Final = 30.0


def require_same_ids(base_url: str, folder: Path) -> None:
    """``EngineStartError`` where ``/tokenize`` and the tokenizer.json in ``folder`` differ.

    A folder without one says nothing, and nothing is checked.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    for text in TEXTS:
        own = tokenizer.encode(text, add_special_tokens=False).ids
        theirs = _tokenize(base_url, text)
        if own != theirs:
            at = next((n for n, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), -1)
            raise EngineStartError(
                f"llama-server turns {text!r} into other ids than the model's tokenizer, from "
                f"position {at} on: its GGUF file has another pre-tokenizer",
                fix="write the file with "
                "llama.cpp's convert_hf_to_gguf.py and serve it with weights: ./file.gguf",
            )


def _tokenize(base_url: str, text: str) -> list[int]:
    body = {"content": text, "add_special": False, "parse_special": True}
    try:
        status, answer = request(base_url, "/tokenize", body=body, timeout_s=_TIMEOUT_S)
        if status != http.client.OK:
            raise NoAnswer(f"/tokenize answered {status}")
        return [int(each) for each in json.loads(answer)["tokens"]]
    except (NoAnswer, ValueError, KeyError, TypeError) as error:
        raise EngineStartError(
            f"llama-server does not tokenize ({error})", fix="build it again"
        ) from error
