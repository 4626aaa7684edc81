"""Requests for log-probabilities by token id, in SGLang's words.

Its OpenAI endpoint has no ``prompt_logprobs`` and names tokens by their text; ``/generate`` gives
both by id. Requests and replies are translated from and to vLLM's form, so that one reader reads
all. Wording of ``GenerateReqInput`` in SGLang 0.5.17.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from whet.core.protocols import Dialect

_SAMPLING: Final = ("temperature", "top_p", "top_k", "ignore_eos", "stop")
_PROMPT: Final = "prompt_logprobs"

_Tops = Sequence[Sequence[Sequence[Any]] | None]
"""(log-probability, token) of the likeliest tokens, by position."""


def asks_natively(body: Mapping[str, Any]) -> bool:
    """Whether a request needs what only ``/generate`` has, and can be put in its words."""
    by_id = body.get("logprobs") is not None and body.get("return_tokens_as_token_ids")
    ids = isinstance(body.get("prompt"), list) and body.get("n", 1) == 1
    return ids and bool(by_id or _PROMPT in body)


def request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body for ``/generate``; ``logprob_start_len`` -1 leaves the prompt's out."""
    sampling = {name: body[name] for name in _SAMPLING if name in body}
    return {
        "input_ids": body["prompt"],
        "sampling_params": {**sampling, "max_new_tokens": body["max_tokens"]},
        "return_logprob": True,
        "logprob_start_len": 0 if _PROMPT in body else -1,
        "top_logprobs_num": body[_PROMPT] if _PROMPT in body else body["logprobs"],
        "extra_key": body.get("cache_salt"),
        "stream": False,
    }


def reply(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The reply in vLLM's form: ``token_ids``, ``logprobs`` and ``prompt_logprobs``."""
    meta = answer.get("meta_info") or {}
    written = meta.get("output_token_logprobs") or []
    names = [f"token_id:{token}" for _, token, *_ in written]
    tops = meta.get("output_top_logprobs") or []
    choice = {
        "text": answer.get("text"),
        "token_ids": answer.get("output_ids") or [token for _, token, *_ in written],
        "finish_reason": (meta.get("finish_reason") or {}).get("type"),
        "logprobs": {
            "tokens": names,
            "token_logprobs": [logprob for logprob, *_ in written],
            "top_logprobs": [
                {f"token_id:{number}": value for value, number, *_ in [*_at(tops, at), row]}
                for at, row in enumerate(written)
            ],
        },
        _PROMPT: _prompt(meta.get("input_token_logprobs"), meta.get("input_top_logprobs")),
    }
    return {"choices": [choice]}


def _prompt(
    own: Sequence[Sequence[Any]] | None, tops: _Tops | None
) -> list[dict[str, Any] | None] | None:
    """An entry for every position, the likeliest first; the first token has none."""
    if not own:
        return None
    entries: list[dict[str, Any] | None] = [None]
    for position, (logprob, token, *_) in enumerate(own[1:], start=1):
        named = [*_at(tops or (), position), (logprob, token)]
        entries.append({str(number): {"logprob": value} for value, number, *_ in named})
    return entries


def _at(tops: _Tops, position: int) -> Sequence[Sequence[Any]]:
    """The likeliest tokens of a position; none where the server gives none."""
    return (tops[position] if position < len(tops) else None) or ()


DIALECT: Final = Dialect(
    path="/generate", asks_natively=asks_natively, request=request, reply=reply
)
