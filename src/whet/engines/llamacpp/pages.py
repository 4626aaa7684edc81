"""What llama-server's own endpoints say about it once it is up, and the names of its counters."""

from __future__ import annotations

from typing import Final

from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED
from whet.core.records.evidence import Declared
from whet.engines.pages import json_page, model_cards

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
