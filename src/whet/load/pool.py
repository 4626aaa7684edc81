"""The built-in texts of generated requests: system prompts, short and long, and user turns."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from whet.core.errors import StorageError

_KINDS: Final = ("system_short", "system_long", "user")


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPool:
    """Texts by kind, in file order."""

    system_short: tuple[str, ...]
    system_long: tuple[str, ...]
    user: tuple[str, ...]

    def systems(self, *, long: bool) -> tuple[str, ...]:
        """System prompts of one length."""
        return self.system_long if long else self.system_short


@lru_cache(maxsize=4)
def read_pool(path: Path) -> PromptPool:
    """Read ``workload.jsonl`` of a run's inputs; ``StorageError`` if it is missing or damaged."""
    texts: dict[str, list[str]] = defaultdict(list)
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            texts[row["kind"]].append(row["text"])
        if missing := [kind for kind in _KINDS if not texts[kind]]:
            raise ValueError(f"no {missing[0]} in it")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(
            f"the built-in texts in {path} cannot be read ({error})",
            fix="start a new run (--name)",
        ) from error
    return PromptPool(**{kind: tuple(texts[kind]) for kind in _KINDS})
