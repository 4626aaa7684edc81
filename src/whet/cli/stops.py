"""What to do after Ctrl-C or SIGTERM, by command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from whet.core.quote import shell_words

_AGAIN: Final = "Run the command again."
_RESUMED: Final = "Resume: {command} --resume"

AFTER_STOP: Final[Mapping[str, str]] = {
    "init": _AGAIN,
    "plan": _AGAIN,
    "check": _AGAIN,
    "doctor": _AGAIN,
    "run": _RESUMED,
    "quantize": "OUT exists only if its checkpoint is complete; otherwise run the command again.",
    "bench": "Figures printed above cover what was measured before.",
    "quality": "Nothing is stored; run the command again.",
    "report": _AGAIN,
    "decide": _AGAIN,
    "deploy": "The folder is as before; run the command again.",
    "ci": _AGAIN,
    "ci init": _AGAIN,
    "prompts": _AGAIN,
    "watch": "Start it again; it continues from its state.",
    "demo": _RESUMED,
}
"""Only ``run`` and ``demo`` have ``--resume``."""


def stop_message(words: Sequence[str]) -> str:
    """``Stopped.`` and the next step for ``whet WORDS…``."""
    own = list(words)
    keys = (f"{own[0]} {word}" for word in own[1:]) if own else ()
    key = next((key for key in keys if key in AFTER_STOP), own[0] if own else "")
    command = shell_words(["whet", *(word for word in own if word != "--resume")])
    return f"Stopped. {AFTER_STOP.get(key, _AGAIN).format(command=command)}"
