"""Start a server, wait until it has really generated, hand it out, reap it whatever happens."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from whet.core.errors import EngineLostError, EngineStartError, Interrupted
from whet.core.records.engine import ResolvedEngine, StartFacts
from whet.core.redact import redact
from whet.engines import get_profile
from whet.engines.failures import RETRIED, Failure, diagnose, last_words
from whet.engines.memory import (
    Place,
    device_bytes,
    resident_bytes,
    take_place,
    used_device_bytes,
)
from whet.engines.probe import NoAnswer, generate_canary, is_healthy
from whet.engines.process import EngineProcess, free_port

_POLL_S = 0.2
_LOG_LAG_S = 1.0
_ATTEMPTS = 2
_DEAD_CORE = (
    "EngineDeadError",
    "EngineCore encountered a fatal error",
    "EngineCore died unexpectedly",
)
_KILLED = 137


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """Deadlines: of the first generation, which may compile, and of a polite end."""

    canary_s: float = 180.0
    grace_s: float = 10.0
    retry_pause_s: float = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failed:
    failure: Failure


class SpawnedServer:
    """A server process that has answered its canary; implements ``core.protocols.Server``."""

    def __init__(
        self,
        process: EngineProcess,
        resolved: ResolvedEngine,
        start: StartFacts,
        *,
        place: Place,
    ) -> None:
        """Made by ``serve_process`` only."""
        self._process = process
        self._resolved = resolved
        self._place = place
        self.start = start

    @property
    def base_url(self) -> str:
        """On the loopback, without ``/v1``."""
        return f"http://127.0.0.1:{self.start.port}"

    @property
    def model_name(self) -> str:
        """The name that requests must ask for."""
        return self._resolved.served_model_name

    def memory_bytes(self) -> int | None:
        """Device memory on a GPU; Σ PSS on a CPU."""
        tree = self._process.descendants()
        if self._resolved.device == "cuda":
            return device_bytes(tree, before=self._place.growth_since)
        return resident_bytes(tree)

    def log_text(self) -> str:
        """Everything printed since this start."""
        return redact(self._process.log_text())

    def ensure_alive(self) -> None:
        """``EngineLostError`` where the process ended, or where its engine core did under it."""
        code = self._process.exit_code()
        if code is None and not any(word in self._process.log_tail() for word in _DEAD_CORE):
            return
        raise EngineLostError(_why(self._resolved, self._process, code, "stopped while serving"))


@contextmanager
def serve_process(
    resolved: ResolvedEngine,
    *,
    log: Path,
    patience: Patience | None = None,
    stop: Event | None = None,
) -> Iterator[SpawnedServer]:
    """Spawn ``resolved.argv`` on a free port and yield it once it has generated.

    A taken port, a damaged compile cache and memory held by a neighbour are tried once more, the
    second time with an empty cache folder. Raises ``EngineStartError`` with the engine's own
    reason, and ``Interrupted`` where ``stop`` is set before it is ready. May be entered in any
    thread and left in another.
    """
    patience, stop = patience or Patience(), stop or Event()
    with ExitStack() as stack:
        place = stack.enter_context(take_place())
        scratch: dict[str, str] = {}
        for attempt in range(1, _ATTEMPTS + 1):
            began = time.monotonic()
            place.used_before = used_device_bytes() if resolved.device == "cuda" else None
            process, port = _spawn(resolved, log, scratch, patience)
            stack.callback(process.stop)
            outcome = _await_canary(process, resolved, port, patience, stop)
            if isinstance(outcome, str):
                start = StartFacts(
                    variant=resolved.variant.name,
                    ready_s=time.monotonic() - began,
                    canary_text=outcome,
                    port=port,
                    pid=process.pid,
                    attempts=attempt,
                )
                yield SpawnedServer(process, resolved, start, place=place)
                return
            process.stop()
            if attempt == _ATTEMPTS or outcome.failure.kind not in RETRIED:
                raise EngineStartError(outcome.failure.sentence)
            time.sleep(patience.retry_pause_s)
            if outcome.failure.kind == "compile_cache":
                scratch = {"VLLM_CACHE_ROOT": stack.enter_context(_temporary_folder())}


def _spawn(
    resolved: ResolvedEngine, log: Path, scratch: Mapping[str, str], patience: Patience
) -> tuple[EngineProcess, int]:
    port = free_port()
    argv = [word.replace("{port}", str(port)) for word in resolved.argv]
    env = {**os.environ, **dict(resolved.env), **dict(resolved.variant.secret_env), **scratch}
    env.pop("VLLM_API_KEY", None)  # the server is on the loopback, and the client sends no key
    process = EngineProcess(argv, env=env, log=log, grace_s=patience.grace_s)
    if resolved.device == "cpu":
        process.yield_cores()
    return process, port


@contextmanager
def _temporary_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="whet-cache-", ignore_cleanup_errors=True) as folder:
        yield folder


def _await_canary(
    process: EngineProcess, resolved: ResolvedEngine, port: int, patience: Patience, stop: Event
) -> str | _Failed:
    """The canary's text, or why there is none. ``Interrupted`` once ``stop`` is set."""
    base_url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + resolved.ready_timeout_s
    while not (is_healthy(base_url) and process.listens_on(port)):
        if stop.is_set():
            raise Interrupted(f"{_who(resolved)} was told to stop before it was ready")
        if process.exit_code() is not None:
            return _ended(process, resolved)
        if time.monotonic() > deadline:
            return _too_slow(process, resolved)
        time.sleep(_POLL_S)
    try:
        text = generate_canary(base_url, resolved.served_model_name, timeout_s=patience.canary_s)
    except NoAnswer as error:
        return _sick(process, resolved, error)
    return text if process.exit_code() is None else _ended(process, resolved)


def _ended(process: EngineProcess, resolved: ResolvedEngine) -> _Failed:
    kind = found.kind if (found := _diagnose(resolved, process)) else "other"
    code = process.exit_code()
    sentence = _why(resolved, process, code, "ended before it was ready")
    return _Failed(failure=Failure(kind=kind, sentence=sentence))


def _too_slow(process: EngineProcess, resolved: ResolvedEngine) -> _Failed:
    said = last_words(process.log_text())
    sentence = (
        f"{_who(resolved)} was not ready after {resolved.ready_timeout_s:g} s; its last words were "
        f"{said!r}; raise engine.ready_timeout_s if it still worked, else see {process.log.name}"
    )
    return _Failed(failure=Failure(kind="hang", sentence=redact(sentence)))


def _sick(process: EngineProcess, resolved: ResolvedEngine, error: NoAnswer) -> _Failed:
    """Healthy by its own word, yet unable to generate."""
    # The answer may come before the log that explains it: the guardian writes a moment later.
    deadline = time.monotonic() + _LOG_LAG_S
    while (found := _diagnose(resolved, process)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    reason = found.sentence if found else f"{error}; see {process.log.name}"
    sentence = f"{_who(resolved)} reports itself healthy but cannot generate: {reason}"
    return _Failed(
        failure=Failure(kind=found.kind if found else "canary", sentence=redact(sentence))
    )


def _why(resolved: ResolvedEngine, process: EngineProcess, code: int | None, what: str) -> str:
    log = process.log_text()
    found = _diagnose(resolved, process)
    if code == _KILLED and (found is None or found.kind == "other"):
        reason = (
            "it was killed (signal 9), most often for want of memory; free some, or lower "
            "max_model_len or the cache"
        )
    elif found is not None:
        reason = found.sentence
    else:
        status = "" if code is None else f" (exit code {code})"
        reason = f"its last words were {last_words(log)!r}{status}; see {process.log.name}"
    return redact(f"{_who(resolved)} {what}: {reason}")


def _diagnose(resolved: ResolvedEngine, process: EngineProcess) -> Failure | None:
    return diagnose(process.log_text(), get_profile(resolved.engine).failures)


def _who(resolved: ResolvedEngine) -> str:
    return f"{resolved.engine} {resolved.engine_version} for variant {resolved.variant.name!r}"
