"""The texts that workloads are drawn from: system prompts, short and long, and user turns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from whet.core.errors import UsageError

KINDS = ("system_short", "system_long", "user")


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPool:
    """Texts by kind, in file order."""

    path: str
    system_short: tuple[str, ...]
    system_long: tuple[str, ...]
    user: tuple[str, ...]

    def systems(self, *, long: bool) -> tuple[str, ...]:
        """System prompts of one length; ``UsageError`` where the pool has none."""
        texts = self.system_long if long else self.system_short
        if not texts:
            kind = "system_long" if long else "system_short"
            raise UsageError(
                f'{self.path} has no line of kind "{kind}"; add one, or set '
                f"workload.long_system_share to {0 if long else 1}"
            )
        return texts


@lru_cache(maxsize=4)
def read_pool(path: Path) -> PromptPool:
    """Read and check a pool; ``UsageError`` names the line that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the workload pool {path} cannot be read: {error}") from error
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            kind, text = _read_line(line, where=f"{path}, line {number}")
            texts[kind].append(text)
    if not texts["user"]:
        raise UsageError(f'{path} has no line of kind "user"; add some user turns')
    return PromptPool(
        path=str(path),
        system_short=tuple(texts["system_short"]),
        system_long=tuple(texts["system_long"]),
        user=tuple(texts["user"]),
    )


def _read_line(line: str, *, where: str) -> tuple[str, str]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON ({error}); write one JSON object a line") from error
    kind = item.get("kind") if isinstance(item, dict) else None
    text = item.get("text") if isinstance(item, dict) else None
    if kind not in KINDS or not isinstance(text, str) or not text.strip():
        raise UsageError(
            f'{where}: needs "kind" (one of {", ".join(KINDS)}) and a "text" that is not empty'
        )
    return kind, text
