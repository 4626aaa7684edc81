"""Where the bundled model pair is stored, and the recorded run on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PAIR: Final = Path(__file__).parent / "pair"


def pair_paths() -> tuple[Path, Path]:
    """The checkpoint folders of the target and the draft."""
    return PAIR / "target", PAIR / "draft"


RECORDED: Final = Path(__file__).parent / "recorded" / "h200-7b-testbed.tar.xz"
"""Every event of a run on an H200, below ``run/``."""

CHAT_LOG: Final = Path(__file__).parent / "chat-log.jsonl.xz"
"""The demo's traffic: a support desk's requests, made by ``lab.chat_log``."""
