"""What the stages agree on without importing one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from whet.core.records.engine import ResolvedEngine, StartFacts, Variant
from whet.core.records.summary import CellSummary

if TYPE_CHECKING:
    from whet.core.spec import EngineSpec


class Server(Protocol):
    """A running engine that has answered its canary."""

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:41231``, without ``/v1``."""

    @property
    def model_name(self) -> str:
        """The name that requests must ask for."""

    @property
    def start(self) -> StartFacts:
        """How it came up."""

    def memory_bytes(self) -> int | None:
        """Memory of the process tree now: device memory on a GPU, resident on a CPU."""

    def log_text(self) -> str:
        """Everything that the engine has printed so far, secrets redacted."""

    def ensure_alive(self) -> None:
        """Raise ``EngineLostError`` with the log's last error line if the process ended."""


class Engine(Protocol):
    """One inference engine."""

    name: str

    def version(self, spec: EngineSpec) -> str:
        """The installed version; ``EngineStartError`` with the fix if it is missing."""

    def resolve(self, variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        """Everything that will be set, as the record that is stored."""

    def unsupported(self, resolved: ResolvedEngine) -> str | None:
        """Why this version cannot run it on this device, or None."""

    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
    ) -> AbstractContextManager[Server]:
        """Start, wait for the canary, hand out, reap the process group whatever happens.

        A server that is not ready when ``stop`` is set is given up with ``Interrupted``: Ctrl-C
        reaches the main thread alone, and several servers may come up in threads of their own.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """Requests for log-probabilities in an engine's own words, translated from vLLM's and back.

    ``asks_natively`` says whether the body of a completion needs ``path``; ``request`` and
    ``reply`` translate it and its answer.
    """

    path: str
    asks_natively: Callable[[Mapping[str, Any]], bool]
    request: Callable[[Mapping[str, Any]], dict[str, Any]]
    reply: Callable[[Mapping[str, Any]], dict[str, Any]]


class Observer(Protocol):
    """Receives what ``flow`` reports about its progress; the console implements it."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins."""

    def note(self, message: str) -> None:
        """Something worth a line."""

    def warn(self, message: str) -> None:
        """Something that a person should know before trusting the result."""

    def progress(self, label: str, done: int, total: int) -> None:
        """Work inside the stage advances."""

    def cell(self, cell: CellSummary, standing: str) -> None:
        """A cell was measured; ``standing`` says in a few words what it means."""


Progress = Callable[[int, int], None]
"""Called with (done, total); a stage that takes long accepts one."""


class Silent:
    """An observer that says nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """Say nothing."""

    def note(self, message: str) -> None:
        """Say nothing."""

    warn = note

    def progress(self, label: str, done: int, total: int) -> None:
        """Say nothing."""

    def cell(self, cell: CellSummary, standing: str) -> None:
        """Say nothing."""


@dataclass(slots=True)
class Lines(Silent):
    """An observer that keeps notes and warnings, each with its method, for another observer."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def note(self, message: str) -> None:
        """Keep a note."""
        self.lines.append(("note", message))

    def warn(self, message: str) -> None:
        """Keep a warning."""
        self.lines.append(("warn", message))

    def pass_on(self, observer: Observer) -> None:
        """Say everything to ``observer``."""
        for how, line in self.lines:
            getattr(observer, how)(line)
