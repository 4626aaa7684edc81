"""What a server's own endpoints say about it once it is up."""

from __future__ import annotations

import re
from typing import Final

from whet.client.counters import info_labels
from whet.core.counters import CACHE_CONFIG
from whet.core.records.evidence import Declared
from whet.engines.probe import flatten, json_page, model_cards, text_page

_INFO: Final = "/server_info?config_format=json"
_ENGINE: Final = re.compile(r'^vllm:\w+\{[^}]*\bengine="([^"]+)"', re.MULTILINE)
"""In any series: with several API servers an engine that had no request yet is missing in some."""
_TIMEOUT_S: Final = 180.0
"""``/server_info`` runs a dozen programs to describe its machine, slowly where that is busy."""


def read_declared(base_url: str) -> Declared:
    """GET ``/version``, ``/server_info`` (vLLM's developer mode), ``/metrics`` and ``/v1/models``.

    An endpoint that is missing leaves its part empty. Raises ``EngineLostError`` where the server
    does not answer at all.
    """
    version = json_page(base_url, "/version", timeout_s=_TIMEOUT_S).get("version")
    info = json_page(base_url, _INFO, timeout_s=_TIMEOUT_S)
    metrics = text_page(base_url, "/metrics", timeout_s=_TIMEOUT_S)
    return Declared(
        version=version if isinstance(version, str) else None,
        config=tuple(sorted(flatten(info.get("vllm_config")))),
        cache=tuple(sorted(info_labels(metrics, CACHE_CONFIG).items())),
        models=tuple(str(card.get("id")) for card in model_cards(base_url)),
        engines=len(set(_ENGINE.findall(metrics))) or None,
    )
