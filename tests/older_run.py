"""A run as older versions wrote it: its journal has no sha256, so that records may be edited."""

from __future__ import annotations

import json
from pathlib import Path


def forget_hashes(root: Path) -> None:
    """Leave the sha256 of every record out of the journal of the run in ``root``."""
    journal = root / "journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text("utf-8").splitlines()]
    lines = (json.dumps({k: v for k, v in each.items() if k != "sha256"}) for each in entries)
    journal.write_text("".join(f"{line}\n" for line in lines), "utf-8")
