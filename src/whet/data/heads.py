"""Published heads and drafts by the model that they were trained for (``heads.csv``).

Collected on 2026-11-28 from the READMEs and recipes that ``source`` names. Methods are those of
vLLM 0.33. A row is a candidate: whether the head fits a target is read from its files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from whet.data import FOLDER


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedHead:
    """One row. ``base`` may end with ``*``; ``head`` is empty for layers that the base brings.

    ``options`` are switches of vLLM's speculative config, ``num_tokens`` the K that the source
    gives.
    """

    base: str
    head: str
    method: str
    options: tuple[str, ...]
    num_tokens: int | None
    source: str


@cache
def all_heads() -> tuple[PublishedHead, ...]:
    """Every row of the table."""
    text = (FOLDER / "heads.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedHead(
            base=row["base"],
            head=row["head"],
            method=row["method"],
            options=tuple(row["options"].split()),
            num_tokens=int(row["num_tokens"]) if row["num_tokens"] else None,
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def published_heads(base: str) -> Iterator[PublishedHead]:
    """Yield the heads that are listed for the hub id ``base``."""
    for row in all_heads():
        if fnmatchcase(base.lower(), row.base.lower()):
            yield row
