"""vLLM's latency histograms with the objectives as exact edges (0.32 and later)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from whet.engines.compatibility import version_of

FLAG: Final = "custom-histogram-buckets"
SINCE: Final = "0.32"
"""The first version that is known to have the flag; 0.26 has not."""

DEFAULTS: Final[Mapping[str, tuple[float, ...]]] = {
    "time_to_first_token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "inter_token_latency": (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0),
    ),
    "request_latency": (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
        *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}
"""vllm/v1/metrics/buckets.py of 0.32, by family; TPOT has the edges of ``inter_token_latency``."""


def bucket_edges(
    edges_s: Mapping[str, tuple[float, ...]], version: str
) -> dict[str, tuple[float, ...]]:
    """Every edge by family: the defaults, and ``edges_s`` where ``version`` can have them."""
    exact = version_of(version) >= version_of(SINCE)
    return {
        family: tuple(sorted({*default, *(edges_s.get(family, ()) if exact else ())}))
        for family, default in DEFAULTS.items()
    }


def bucket_words(edges: Mapping[str, tuple[float, ...]]) -> tuple[str, ...]:
    """The flag that sets ``edges``; families with the default ones are left out."""
    changed = {name: each for name, each in edges.items() if each != DEFAULTS[name]}
    return (f"--{FLAG}", json.dumps(changed)) if changed else ()
