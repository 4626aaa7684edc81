"""What SGLang's own endpoints say about it once it is up, and the names of its counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED, PREFIX_HITS
from whet.core.counters import PREFIX_QUERIES as QUERIES
from whet.core.records.evidence import Declared
from whet.engines.probe import flatten, json_page, model_cards

_GENERATED: Final = "sglang:generation_tokens_total"
_PROMPT: Final = "sglang:prompt_tokens_total"
_VERIFIED: Final = "sglang:spec_verify_calls_total"
COUNTERS: Final = {
    _GENERATED: GENERATED,
    _PROMPT: QUERIES,
    f"{_PROMPT} - sglang:uncached_prompt_tokens_histogram_sum": PREFIX_HITS,
    _VERIFIED: DRAFTS,
    f"K * {_VERIFIED}": DRAFT_TOKENS,
    f"{_GENERATED} - {_VERIFIED} - sglang:num_requests_total": ACCEPTED,
}
"""All are counted when a request ends. A request's first token comes from its prompt, and each
verification adds one token of the target to those accepted."""
_COMMON: Final = {
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
}


def read_declared(base_url: str) -> Declared:
    """GET ``/server_info`` and ``/v1/models``; an endpoint that is missing leaves its part empty.

    Raises ``EngineLostError`` where the server does not answer at all.
    """
    info, cards = json_page(base_url, "/server_info"), model_cards(base_url)
    version = info.get("version")
    length = next((card.get("max_model_len") for card in cards), None)
    config = dict(flatten(info)) | ({} if length is None else {"max_model_len": str(length)})
    config |= {name: config[own] for name, own in _COMMON.items() if own in config}
    return Declared(
        version=version if isinstance(version, str) else None,
        config=tuple(sorted(config.items())),
        cache=tuple(_cache(info)),
        models=tuple(str(card.get("id")) for card in cards),
    )


def _cache(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(dtype := info.get("kv_cache_dtype"), str):
        yield "cache_dtype", dtype
    if isinstance(disabled := info.get("disable_radix_cache"), bool):
        yield "enable_prefix_caching", str(not disabled)
