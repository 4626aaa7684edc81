"""What llama-server's own endpoints say about it once it is up, and the names of its counters."""

from __future__ import annotations

import json
from typing import Any, Final

from whet.client.errors import HttpError
from whet.client.simple import get_text
from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED
from whet.core.records import Declared

COUNTERS: Final = {
    "llamacpp:tokens_predicted_total": GENERATED,
    "llamacpp:spec_decode_num_drafts_total": DRAFTS,
    "llamacpp:spec_decode_num_draft_tokens_total": DRAFT_TOKENS,
    "llamacpp:spec_decode_num_accepted_tokens_total": ACCEPTED,
}
_TIMEOUT_S: Final = 30.0


def read_declared(base_url: str) -> Declared:
    """GET ``/props`` and ``/v1/models``; an endpoint that is missing leaves its part empty.

    Raises ``EngineLostError`` where the server does not answer at all.
    """
    props, models = _object(base_url, "/props"), _object(base_url, "/v1/models").get("data")
    generation = props.get("default_generation_settings") or {}
    settings = {
        "max_num_seqs": props.get("total_slots"),
        "max_model_len": generation.get("n_ctx"),
    }
    return Declared(
        version=props.get("build_info"),
        config=tuple((name, str(value)) for name, value in settings.items() if value is not None),
        cache=(),
        models=tuple(str(item.get("id")) for item in models or () if isinstance(item, dict)),
    )


def _object(base_url: str, path: str) -> dict[str, Any]:
    try:
        data = json.loads(get_text(base_url, path, timeout_s=_TIMEOUT_S))
    except (HttpError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
