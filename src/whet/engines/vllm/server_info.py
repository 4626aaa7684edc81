"""What a server's own endpoints say about it once it is up."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from whet.client.counters import info_labels
from whet.client.errors import HttpError
from whet.client.simple import get_text
from whet.core.records import Declared
from whet.engines.pages import flatten

_INFO: Final = "/server_info?config_format=json"
_CACHE: Final = "vllm:cache_config_info"
_ENGINE: Final = re.compile(r'^vllm:\w+\{[^}]*\bengine="([^"]+)"', re.MULTILINE)
"""In any series: with several API servers an engine that had no request yet is missing in some."""
_TIMEOUT_S: Final = 180.0
"""``/server_info`` runs a dozen programs to describe its machine, slowly where that is busy."""


def read_declared(base_url: str) -> Declared:
    """GET ``/version``, ``/server_info`` (vLLM's developer mode), ``/metrics`` and ``/v1/models``.

    An endpoint that is missing leaves its part empty. Raises ``EngineLostError`` where the server
    does not answer at all.
    """
    texts = {
        path: _text_or_none(base_url, path)
        for path in ("/version", _INFO, "/metrics", "/v1/models")
    }
    version = _object(texts["/version"]).get("version")
    models = _object(texts["/v1/models"]).get("data")
    metrics = texts["/metrics"] or ""
    return Declared(
        version=version if isinstance(version, str) else None,
        config=tuple(sorted(flatten(_object(texts[_INFO]).get("vllm_config")))),
        cache=tuple(sorted(info_labels(metrics, _CACHE).items())),
        models=tuple(str(item.get("id")) for item in models if isinstance(item, dict))
        if isinstance(models, list)
        else (),
        engines=len(set(_ENGINE.findall(metrics))) or None,
    )


def _text_or_none(base_url: str, path: str) -> str | None:
    try:
        return get_text(base_url, path, timeout_s=_TIMEOUT_S)
    except HttpError:
        return None


def _object(text: str | None) -> dict[str, Any]:
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
