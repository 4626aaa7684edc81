"""The watch's own metrics for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from whet.core.errors import UsageError
from whet.core.server_url import split_address
from whet.watch.causes import CAUSES
from whet.watch.detectors import REPEATS, THRESHOLD
from whet.watch.observation import Observation
from whet.watch.state import Period


class Exporter:
    """Metrics of the watch on ``host:port``; nothing is served where ``listen`` is ``off``."""

    def __init__(self, listen: str, period_s: float) -> None:
        """``UsageError`` for an address that is not HOST:PORT or is taken."""
        self._registry = CollectorRegistry()
        self._alarm = self._gauge("whet_watch_alarm", "1 while this cause is present.", "cause")
        self._signal = self._gauge(
            "whet_watch_signal", "A detector's state as a share of its alarm.", "signal"
        )
        self._last = self._gauge(
            "whet_watch_last_period_timestamp_seconds", "When the last period ended."
        )
        self._gauge("whet_watch_period_seconds", "Seconds between two periods.").set(period_s)
        self._dropped = self._gauge("whet_watch_journal_dropped", "Journal writes that failed.")
        self._skipped = Counter(
            "whet_watch_probes_skipped",
            "Periods without probes, because the engine was under pressure.",
            registry=self._registry,
        )
        for cause in CAUSES:
            self._alarm.labels(cause.name).set(0)
        self._server = None if listen == "off" else self._serve(listen)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server[0].shutdown()
            self._server[0].server_close()

    def show(self, look: Observation, period: Period, *, dropped: int) -> None:
        """Publish one period."""
        present = {finding.cause.name for finding in period.findings}
        for name in {cause.name for cause in CAUSES} | present | set(period.ended):
            self._alarm.labels(name).set(name in present)
        for name, cusum in period.state.cusums.items():
            self._signal.labels(name).set(cusum.total / THRESHOLD)
        for name in period.mismatches:
            self._signal.labels(name).set(period.state.repeated[name].count / REPEATS)
        self._last.set(look.at_s)
        self._dropped.set(dropped)
        if look.skipped is not None:
            self._skipped.inc()

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(name, words, labels, registry=self._registry)

    def _serve(self, listen: str) -> Any:
        host, port = split_address(listen, "--listen")
        try:
            return start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise UsageError(
                f"--listen {listen} cannot be used ({error})", fix="choose another port, or off"
            ) from error
