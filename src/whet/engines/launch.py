"""Start a server, wait for its first generation, hand it out, and always reap it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from whet.core.errors import EngineLostError, EngineStartError, Interrupted
from whet.core.records.engine import ResolvedEngine, StartFacts
from whet.core.redact import redact
from whet.engines import get_profile
from whet.engines.failures import RETRIED, Failure, diagnose, last_words
from whet.engines.memory import (
    ServerSlot,
    device_bytes,
    resident_bytes,
    take_slot,
    used_device_bytes,
)
from whet.engines.probe import NoAnswer, generate_canary, is_healthy
from whet.engines.process import EngineProcess, Fork, free_port

_POLL_S = 0.2
_LOG_LAG_S = 1.0
_ATTEMPTS = 2
_CANARY_S = 180.0
"""Limit on the first generation, which may compile."""
_GRACE_S = 10.0
_RETRY_PAUSE_S = 2.0
_KILLED = 137
_UNEXPLAINED = ("other", "canary")
"""Failures without a known sign, which the fork may have caused."""


class SpawnedServer:
    """A server process that has answered its canary; implements ``core.protocols.Server``."""

    def __init__(
        self,
        process: EngineProcess,
        resolved: ResolvedEngine,
        start: StartFacts,
        *,
        slot: ServerSlot,
    ) -> None:
        """Made by ``serve_process`` only."""
        self._process = process
        self._resolved = resolved
        self._slot = slot
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
            return device_bytes(tree, before=self._slot.growth_since)
        return resident_bytes(tree)

    def log_text(self) -> str:
        """Everything printed since this start."""
        return redact(self._process.log_text())

    def ensure_alive(self) -> None:
        """``EngineLostError`` where the process ended, or where its engine core did under it."""
        code = self._process.exit_code()
        lost = get_profile(self._resolved.engine).failures.lost
        if code is None and not any(word in self._process.log_tail() for word in lost):
            return
        raise EngineLostError(_why(self._resolved, self._process, code, "stopped while serving"))


@contextmanager
def serve_process(
    resolved: ResolvedEngine, *, log: Path, stop: Event | None = None, fork: Fork | None = None
) -> Iterator[SpawnedServer]:
    """Spawn ``resolved.argv`` on a free port and yield it once it has generated.

    After a taken port, memory used by another program or an unexplained failure of a forked server
    it is started once more, not forked. Raises
    ``EngineStartError`` with the engine's own reason, and ``Interrupted`` if ``stop`` is set before
    it is ready. May be entered in one thread and left in another.
    """
    stop = stop or Event()
    with ExitStack() as stack:
        slot = stack.enter_context(take_slot())
        for attempt in range(1, _ATTEMPTS + 1):
            began = time.monotonic()
            slot.used_before = used_device_bytes() if resolved.device == "cuda" else None
            process, port = _spawn(resolved, log, fork if attempt == 1 else None)
            stack.callback(process.stop)
            failure = _await_health(process, resolved, port, stop)
            healthy_s = time.monotonic() - began
            outcome = failure or _generate_canary(process, resolved, port)
            if isinstance(outcome, str):
                start = StartFacts(
                    variant=resolved.variant.name,
                    ready_s=time.monotonic() - began,
                    canary_text=outcome,
                    port=port,
                    pid=process.pid,
                    attempts=attempt,
                    nice=process.nice,
                    forked=process.forked,
                    health_s=healthy_s,
                )
                yield SpawnedServer(process, resolved, start, slot=slot)
                return
            process.stop()
            again = outcome.kind in (*RETRIED, *(_UNEXPLAINED if process.forked else ()))
            if attempt == _ATTEMPTS or not again:
                raise EngineStartError(outcome.sentence)
            time.sleep(_RETRY_PAUSE_S)


def environment(resolved: ResolvedEngine) -> dict[str, str]:
    """All variables of a server's process."""
    env = {**os.environ, **dict(resolved.env), **dict(resolved.variant.secret_env)}
    env.pop("VLLM_API_KEY", None)  # the server is on the loopback, and the client sends no key
    return env


def _spawn(resolved: ResolvedEngine, log: Path, fork: Fork | None) -> tuple[EngineProcess, int]:
    port = free_port()
    argv = [word.replace("{port}", str(port)) for word in resolved.argv]
    env = environment(resolved)
    return EngineProcess(argv, env=env, log=log, grace_s=_GRACE_S, fork=fork), port


def _await_health(
    process: EngineProcess, resolved: ResolvedEngine, port: int, stop: Event
) -> Failure | None:
    """None once it is healthy. Raises ``Interrupted`` once ``stop`` is set."""
    base_url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + resolved.ready_timeout_s
    while not (is_healthy(base_url) and process.listens_on(port)):
        if stop.is_set():
            raise Interrupted(f"{_label(resolved)} was stopped before it was ready")
        if process.exit_code() is not None:
            return _ended(process, resolved)
        if time.monotonic() > deadline:
            return _too_slow(process, resolved)
        time.sleep(_POLL_S)
    return None


def _generate_canary(process: EngineProcess, resolved: ResolvedEngine, port: int) -> str | Failure:
    """The canary's text, or the failure."""
    base_url = f"http://127.0.0.1:{port}"
    try:
        text = generate_canary(base_url, resolved.served_model_name, timeout_s=_CANARY_S)
    except NoAnswer as error:
        return _unhealthy(process, resolved, error)
    return text if process.exit_code() is None else _ended(process, resolved)


def _ended(process: EngineProcess, resolved: ResolvedEngine) -> Failure:
    kind = failure.kind if (failure := _diagnose(resolved, process)) else "other"
    code = process.exit_code()
    sentence = _why(resolved, process, code, "ended before it was ready")
    return Failure(kind=kind, sentence=sentence)


def _too_slow(process: EngineProcess, resolved: ResolvedEngine) -> Failure:
    last = last_words(process.log_text())
    sentence = (
        f"{_label(resolved)} was not ready after {resolved.ready_timeout_s:g} s; its last words "
        f"were {last!r}; raise engine.ready_timeout_s if it still worked, else see "
        f"{process.log.name}"
    )
    return Failure(kind="hang", sentence=redact(sentence))


def _unhealthy(process: EngineProcess, resolved: ResolvedEngine, error: NoAnswer) -> Failure:
    """``/health`` answers, and yet the server cannot generate."""
    # The answer may come before the log that explains it: the guardian writes a moment later.
    deadline = time.monotonic() + _LOG_LAG_S
    while (failure := _diagnose(resolved, process)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    reason = failure.sentence if failure else f"{error}; see {process.log.name}"
    sentence = f"{_label(resolved)} reports itself healthy but cannot generate: {reason}"
    return Failure(kind=failure.kind if failure else "canary", sentence=redact(sentence))


def _why(resolved: ResolvedEngine, process: EngineProcess, code: int | None, what: str) -> str:
    log = process.log_text()
    failure = _diagnose(resolved, process)
    ended_itself = get_profile(resolved.engine).failures.ends_itself in log
    if code == _KILLED and not ended_itself and (failure is None or failure.kind == "other"):
        reason = (
            "it was killed (signal 9), usually because memory ran out; free some, or lower "
            "max_model_len or the cache"
        )
    elif failure is not None:
        reason = failure.sentence
    else:
        status = "" if code is None else f" (exit code {code})"
        reason = f"its last words were {last_words(log)!r}{status}; see {process.log.name}"
    return redact(f"{_label(resolved)} {what}: {reason}")


def _diagnose(resolved: ResolvedEngine, process: EngineProcess) -> Failure | None:
    return diagnose(process.log_text(), get_profile(resolved.engine).failures.signs)


def _label(resolved: ResolvedEngine) -> str:
    return f"{resolved.engine} {resolved.engine_version} for variant {resolved.variant.name!r}"
