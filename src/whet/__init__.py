"""whet: the cheapest serving configuration that meets your latency and quality targets.

The commands are functions: ``whet.run``, ``whet.load``, ``whet.bench`` and the others that
``dir(whet)`` lists (``whet.api``). They are imported when they are first used.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from whet._version import __version__ as __version__

__all__ = [
    "bench", "check", "decide", "deploy", "load", "plan", "prompts", "quality", "quantize",
    "report", "run",
]  # fmt: skip

if TYPE_CHECKING:
    from whet.api import function
    from whet.api import load as load

    bench = check = decide = deploy = plan = prompts = quality = function("")
    quantize = report = run = function("")


class _Whet(ModuleType):
    """The module, whose functions stay in view when a package of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Whet


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'whet' has no attribute {name!r}")
    from whet import api

    return api.load if name == "load" else api.function(name)


def __dir__() -> list[str]:
    return __all__
