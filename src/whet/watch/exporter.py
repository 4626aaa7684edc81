"""The watch's own metrics for Prometheus."""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from whet.core import counters
from whet.core.errors import UsageError
from whet.watch.causes import CAUSES
from whet.watch.detectors import REPEATS, THRESHOLD
from whet.watch.observation import Observation
from whet.watch.state import Period

_LATENCIES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Exporter:
    """Metrics of the watch on ``host:port``; nothing is served where ``listen`` is ``off``.

    ``llm_…`` are the names that common monitoring snippets use.
    """

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
        self._tps = self._gauge(
            "llm_inference_tokens_per_second", "Output tokens per second between two periods."
        )
        self._acceptance = self._gauge(
            "llm_spec_decode_acceptance_rate", "Accepted ÷ drafted tokens between two periods."
        )
        self._latency = Histogram(
            "llm_inference_request_latency_seconds",
            "Latency of the watch's probe request.",
            registry=self._registry,
            buckets=_LATENCIES,
        )
        for cause in CAUSES:
            self._alarm.labels(cause.name).set(0)
        self._server = None if listen == "off" else self._serve(listen)

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server[0].shutdown()
            self._server[0].server_close()

    def show(self, look: Observation, period: Period, *, drafted: int | None, dropped: int) -> None:
        """Publish one period. ``drafted`` is the number of tokens in a draft."""
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
        if look.speed is not None:
            speed = look.speed
            self._latency.observe(speed.ttft_s + speed.tpot_s * (speed.tokens - 1))
        if (window := period.window) is None:
            return
        generated = window.rise(counters.GENERATED)
        if generated is not None and window.seconds > 0:
            self._tps.set(generated / window.seconds)
        drafts, accepted = window.rise(counters.DRAFTS), window.rise(counters.ACCEPTED)
        if drafts and accepted is not None and drafted:
            self._acceptance.set(accepted / (drafts * drafted))

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(name, words, labels, registry=self._registry)

    def _serve(self, listen: str) -> Any:
        host, _, port = listen.rpartition(":")
        if not port.isdecimal() or not host:
            raise UsageError(
                f"--listen {listen} is not HOST:PORT", fix="write 127.0.0.1:9464, or off"
            )
        try:
            return start_http_server(int(port), addr=host, registry=self._registry)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"--listen {listen} cannot be used ({error})", fix="choose another port, or off"
            ) from error
