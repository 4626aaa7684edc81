"""The loop of ``whet watch``: look, judge, write down, propose."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from whet.client.endpoint import KEY_VARIABLE
from whet.core.counters import RUNNING
from whet.core.errors import EngineLostError, StorageError, UsageError
from whet.core.protocols import Observer
from whet.core.provenance import now
from whet.core.records.engine import ResolvedEngine
from whet.core.redact import remember_secrets
from whet.core.server_url import split_server_url
from whet.core.store import locked
from whet.core.units import MIB, human_duration
from whet.engines import get_profile
from whet.flow.watch.options import WatchOptions
from whet.levers import judge_start
from whet.watch.causes import Finding, diagnose, write_proposal
from whet.watch.detectors import LEAST, Cusum
from whet.watch.exporter import Exporter
from whet.watch.observation import Observation
from whet.watch.probe import Identity, Target, accepts, identity_of, observe, probe_share
from whet.watch.source import WatchSource, read_source
from whet.watch.state import Journal, Period, WatchState, advance

MOST_PROBE_SHARE: Final = 0.01
"""Of the measured capacity that probes take of a server that is fully loaded."""
IDLE_PROBE_SHARE: Final = 0.1
"""Of the capacity that is idle."""
_AGAIN_S: Final = 10.0
"""A mismatch is looked at again after so long, where the period is longer."""
_LEARN_S: Final = 600.0
_LOG_BYTES: Final = 64 * MIB
_SERVER_KEY: Final = "VLLM_API_KEY"


@dataclass
class _Watch:
    """One watched deployment and everything that a period touches."""

    source: WatchSource
    options: WatchOptions
    target: Target
    journal: Journal
    observer: Observer
    share: float
    credit: float
    sent: int = 0
    checked: Identity | None = None
    causes: dict[str, None] = field(default_factory=dict)
    unwritten: int = 0
    begun: bool = False
    learning_s: float = field(default_factory=time.time)
    claims: Mapping[str, str] | None = None
    claims_of: float | None = None

    def period(self, state: WatchState, exporter: Exporter) -> WatchState:
        """One look; never raises for what the server or the disk does."""
        doubt = state.cusums.get("answers", Cusum())
        look = observe(
            self.target,
            turn=self.sent if self.credit >= self.share else None,
            cursor=state.cursor,
            last=state.last,
            checked=None if doubt.total > 0 and not doubt.active else self.checked,
        )
        self._pay(look)
        done = advance(state, replace(look, claims=self._claims(look)), self.source)
        self.journal.add("period", look.at, _entry(look, done))
        for finding in done.begun:
            self._alarm(look, finding)
        for name in done.ended:
            self.journal.add("cleared", look.at, {"cause": name})
            self.observer.note(f"{look.at} cleared: {name}")
        if not self.begun and not done.findings:
            self.observer.note(
                f"{look.at} nothing to report; a look every {self.options.period:g} s"
            )
        self.begun = True
        self._say_learning(look, done)
        self.journal.write_state(done.state)
        self._say_unwritten()
        exporter.show(look, done, dropped=self.journal.dropped)
        return done.state

    def _pay(self, look: Observation) -> None:
        """Reckon the probes: what was sent, and what may be sent of this period's idle capacity."""
        if look.answers is not None and look.speed is not None:
            self.checked = identity_of(look)
        if look.speed is not None or look.speed_error is not None:
            self.credit, self.sent = 0.0, self.sent + 1
        running = 0.0 if look.before is None else look.before.values.get(RUNNING, 0.0)
        idle = max(0.0, 1 - running / self.source.envelope.in_flight)
        self.credit += MOST_PROBE_SHARE + IDLE_PROBE_SHARE * idle

    def _say_learning(self, look: Observation, done: Period) -> None:
        """Say every ten minutes what the learned references wait for."""
        count = max((item.count for item in done.state.learned.values()), default=0)
        if self.source.golden is None or count >= LEAST or look.at_s < self.learning_s + _LEARN_S:
            return
        self.learning_s = look.at_s
        causes = ", ".join(item.cause.name for item in done.findings)
        why = look.skipped or causes or look.speed_error or "probes are sent as the load allows"
        words = f"{count} of {LEAST} answers to a fixed prompt: {why}"
        self.observer.note(f"{look.at} the learned references wait for {words}")

    def _say_unwritten(self) -> None:
        """Warn in the first period that could not be written, and after twice as many each time."""
        self.unwritten = 0 if self.journal.problem is None else self.unwritten + 1
        if self.unwritten.bit_count() == 1:
            self.observer.warn(f"{self.journal.problem} (periods in a row: {self.unwritten})")

    def _alarm(self, look: Observation, finding: Finding) -> None:
        cause = finding.cause
        self.causes[cause.name] = None
        self.observer.warn(f"{look.at} {cause.name}: {cause.say}; {'; '.join(finding.evidence)}")
        entry = {"cause": cause.name, "what": cause.what, "evidence": list(finding.evidence)}
        self.journal.add("alarm", look.at, entry)
        if not cause.levers:
            return
        folder = self.journal.folder / "proposals"
        if (folder / f"{cause.name}.yaml").exists():
            return  # one a cause: an alarm that comes and goes proposes nothing new
        try:
            path = write_proposal(folder, self.source.spec, self.source.envelope.variant, finding)
        except StorageError as error:
            self.observer.warn(str(error))
            return
        self.journal.add("proposal", look.at, {"cause": cause.name, "spec": path.name})
        self.observer.note(f"proposed run; start it with: whet run {shlex.quote(str(path))}")

    def _claims(self, look: Observation) -> Mapping[str, str] | None:
        """Broken claims of the running start; the log is read again after a restart."""
        log = self.options.engine_log
        start = None if look.before is None else look.before.process_start
        if log is not None and start is not None and start != self.claims_of:
            self.claims, self.claims_of = broken_claims(log, self.source.engine), start
        return self.claims


def watch(path: Path, options: WatchOptions, observer: Observer) -> tuple[str, ...]:
    """Watch the deployment of ``path`` (a bundle or a run), and return the causes of its alarms.

    They are the alarms that began, and those of an earlier start that still stand. Raises
    ``UsageError`` for an address, device, log or source that cannot be used, and ``StorageError``
    where another watch has the state, or where it could not be written and there is no alarm. An
    engine that does not answer is an alarm; ``EngineLostError`` where it never did in this state.
    """
    split_server_url(options.url, "--url")
    if (log := options.engine_log) is not None and not log.is_file():
        raise UsageError(
            f"--engine-log {log} is not a file", fix="write the engine's output there first"
        )
    use_bundle_key(path)
    source = read_source(path)
    target = Target(
        url=options.url,
        envelope=source.envelope,
        golden=source.golden,
        timeout_s=min(30.0, max(2.0, options.period)),
        names=get_profile(source.engine.engine).counters_of(source.engine.variant),
    )
    share = probe_share(target, options.period)
    with locked(options.state):
        this = _Watch(
            source=source,
            options=options,
            target=target,
            journal=Journal(options.state),
            observer=observer,
            share=share,
            credit=share,
        )
        return _loop(this)


def broken_claims(log: Path, engine: ResolvedEngine) -> dict[str, str]:
    """Claims that the last start in ``log`` contradicts, with what the log says; empty without log.

    A log of several starts is read from the last one on, and within its last 64 MiB.
    """
    try:
        with log.open("rb") as file:
            file.seek(-min(log.stat().st_size, _LOG_BYTES), os.SEEK_END)
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    profile = get_profile(engine.engine)
    start = text.rfind(profile.start_line) if profile.start_line else -1
    facts = profile.read_log(text[max(0, text.rfind("\n", 0, max(0, start))) :])
    return {
        verdict.claim.kind: verdict.observed
        for verdict in judge_start(engine, facts)
        if verdict.outcome == "contradicted"
    }


def _loop(this: _Watch) -> tuple[str, ...]:
    source, options, journal = this.source, this.options, this.journal
    state = journal.read_state(source.envelope.run, source.envelope.variant)
    _introduce(this, state)
    with closing(Exporter(options.listen, options.period)) as exporter:
        if not state.periods and not accepts(this.target):
            raise EngineLostError(
                f"no server answers at {options.url}",
                fix="correct --url, or start the server first",
            )
        journal.add("start", now(), {"variant": source.envelope.variant, "url": options.url})
        due, left, first = time.monotonic(), options.periods, True
        try:
            while left is None or left > 0:
                state = this.period(state, exporter)
                unsure = any(not item.active for item in state.repeated.values())
                if first and unsure:  # a mismatch is looked at again at once
                    time.sleep(min(1.0, options.period))
                    state = this.period(state, exporter)
                first, left = False, None if left is None else left - 1
                wait_s = min(options.period, _AGAIN_S) if unsure else options.period
                due = max(due + wait_s, time.monotonic() + wait_s / 2)
                if left != 0:
                    time.sleep(max(0.0, due - time.monotonic()))
        finally:
            journal.add("stop", now(), {"periods": state.periods})
    causes = tuple({**this.causes, **dict.fromkeys(state.raised)})
    if journal.problem is not None and not causes:
        raise StorageError(journal.problem)
    return causes


def use_bundle_key(path: Path) -> None:
    """Send the key of the deployment where ``OPENAI_API_KEY`` has none.

    It is ``VLLM_API_KEY`` of the environment, or of the bundle's ``.env``.
    """
    if os.environ.get(KEY_VARIABLE):
        return
    key, env = os.environ.get(_SERVER_KEY, ""), path / ".env"
    if not key and env.is_file():
        lines = (
            line.partition("=")
            for line in env.read_text(encoding="utf-8", errors="replace").splitlines()
        )
        key = next((value for name, _, value in lines if name.strip() == _SERVER_KEY), "")
    if key := key.strip().strip("\"'"):
        os.environ[KEY_VARIABLE] = key
        remember_secrets({KEY_VARIABLE: key})


def _introduce(this: _Watch, state: WatchState) -> None:
    """Say what is watched, and the alarms that stand since an earlier start."""
    source, options, observer = this.source, this.options, this.observer
    envelope = source.envelope
    observer.stage("watch", f"{envelope.variant} of {envelope.run} at {options.url}")
    if this.journal.problem is not None:
        observer.warn(this.journal.problem)
    if state.periods:
        observer.note(f"goes on after {state.periods} periods ({options.state})")
    for finding in diagnose(state.active()):
        cause = finding.cause
        stands = human_duration(time.time() - state.raised.get(cause.name, time.time()))
        observer.warn(
            f"standing for {stands}: {cause.name}: {cause.say}; {'; '.join(finding.evidence)}"
        )
    if source.unprobed:
        observer.warn(source.unprobed)


def _entry(look: Observation, done: Period) -> dict[str, Any]:
    """One period in the journal: figures, and signals in standard errors beyond their edge."""
    figures = () if done.window is None else ("requests", "tpot_s", "in_flight")
    return {
        **{name: getattr(done.window, name) for name in figures},
        "signals": {item.signal: round(item.z, 2) for item in done.readings},
        "mismatches": dict(done.mismatches),
        "alarms": [item.cause.name for item in done.findings],
        **({"skipped": look.skipped} if look.skipped else {}),
    }
