"""whet: the cheapest serving configuration that meets your latency and quality targets.

``whet.run``, ``whet.quantize``, ``whet.bench`` and ``whet.decide`` are the commands as functions
(``whet.flow.api``). They are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whet._version import __version__

__all__ = ["__version__", "bench", "decide", "quantize", "run"]

if TYPE_CHECKING:
    from whet.flow.api import bench, decide, quantize, run


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'whet' has no attribute {name!r}")
    from whet.flow import api

    return getattr(api, name)
