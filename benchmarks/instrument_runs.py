"""What the runs of every table share: who runs, where, and that a failure is a row."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.instrument_rows import Run
from benchmarks.instrument_tools import Client, Load, Spent, run_client
from benchmarks.jobs import JobError
from whet.core.errors import WhetError

R = TypeVar("R", bound=Run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """``folder`` holds what a tool writes and is emptied before each run."""

    clients: Sequence[Client]
    versions: Mapping[str, str]
    folder: Path
    limit_s: float
    quick: bool = False

    def in_turn(self, repeat: int) -> list[Client]:
        """The clients, beginning with another one each time."""
        turn = repeat % len(self.clients)
        return [*self.clients[turn:], *self.clients[:turn]]

    def run(self, client: Client, url: str, load: Load, *, memory: bool = False) -> Spent:
        """One run of a tool into an empty folder; ``JobError`` where it wrote no answer."""
        shutil.rmtree(self.folder, ignore_errors=True)
        command = client.command(url, load, self.folder)
        return run_client(client, command, self.folder, limit_s=self.limit_s, memory=memory)

    def report(self, client: Client) -> Mapping[str, Any]:
        """What the tool wrote. ``JobError`` if that is not a JSON object."""
        try:
            report = json.loads((self.folder / client.answer).read_text(encoding="utf-8"))
        except ValueError as error:
            raise JobError(f"{client.answer} holds no figures ({error!r})") from error
        if not isinstance(report, dict):
            raise JobError(f"{client.answer} holds no figures")
        return report


def attempt(row: R, measure: Callable[[R], R]) -> R:
    """The row with what ``measure`` found, or with why it found nothing."""
    try:
        return measure(row)
    except (JobError, WhetError, OSError, subprocess.TimeoutExpired) as error:
        return replace(row, failure=str(error))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        return replace(row, failure=f"its output holds no figures ({error!r})")
