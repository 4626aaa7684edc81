"""Prometheus, Alertmanager and Grafana files, made from what the run measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

from whet.core.quote import yaml_text
from whet.core.records.envelope import Envelope
from whet.core.redact import one_line
from whet.deploy.monitoring.alerts import WATCH_JOB, Alert, alerts, burn_rules, untemplated
from whet.deploy.monitoring.dashboard import dashboard
from whet.deploy.monitoring.series import ENGINE_JOB, HOLD_SCRAPES, Series, duration

__all__ = ["monitoring_files", "notification_delay_s"]

_ENGINE: Final = "vllm:8000"
_WATCH: Final = "host.docker.internal:9464"
_ALERTMANAGER: Final = "alertmanager:9093"
_GROUP_WAIT_SCRAPES: Final = 2


def monitoring_files(
    envelope: Envelope,
    *,
    edges_s: Mapping[str, Sequence[float]],
    scrape_interval_s: float = 15.0,
    job: str = ENGINE_JOB,
    webhook: str | None = None,
) -> dict[str, str]:
    """The text of every file by its path in the bundle.

    ``edges_s`` are the edges of the deployed engine's histograms in seconds, by family: an alert on
    a limit between two of them takes the upper one. ``job`` is Prometheus' name of the scraped
    engine. ``webhook`` is the URL that receives alerts; without one Alertmanager shows them only.
    """
    series = Series(model=envelope.model, scrape_s=scrape_interval_s, edges_s=edges_s, job=job)
    rules = {"groups": [_recording(envelope, series), *_alerting(envelope, series)]}
    words = one_line(
        f"Written by whet deploy from the run {envelope.run}: {envelope.variant} at "
        f"{envelope.load}, {envelope.engine} {envelope.engine_version}."
    )
    header = f"# {words}\n"
    return {
        "monitoring/prometheus.yml": header + yaml_text(_prometheus(series)),
        "monitoring/rules.yml": header + yaml_text(rules),
        "monitoring/alertmanager.yml": header + yaml_text(_alertmanager(series, webhook)),
        "monitoring/grafana/dashboards/whet.json": json.dumps(dashboard(envelope, series), indent=1)
        + "\n",
        **{
            f"monitoring/grafana/provisioning/{kind}/whet.yml": resources.files(__package__)
            .joinpath(f"{kind}.yml")
            .read_text(encoding="utf-8")
            for kind in ("dashboards", "datasources")
        },
    }


def notification_delay_s(scrape_interval_s: float) -> float:
    """Longest time from a fault to its notification for alerts of the short window, in seconds.

    One scrape until it is seen, the window that a rate is taken over, the time that an alert has
    to hold, one evaluation, and Alertmanager's wait for others of the group.
    """
    series = Series(model="", scrape_s=scrape_interval_s, edges_s={})
    waits = (HOLD_SCRAPES + 2 + _GROUP_WAIT_SCRAPES) * scrape_interval_s
    return series.window_s + waits


def _recording(envelope: Envelope, series: Series) -> dict[str, Any]:
    recorded = series.recorded() | burn_rules(envelope, series)
    rules = [{"record": name, "expr": expr} for name, expr in recorded.items()]
    return {"name": "whet-recording", "rules": rules}


def _alerting(envelope: Envelope, series: Series) -> list[dict[str, Any]]:
    return [
        {"name": f"whet-{name}", "rules": [_rule(alert, envelope, series) for alert in group]}
        for name, group in alerts(envelope, series).items()
    ]


def _rule(alert: Alert, envelope: Envelope, series: Series) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": duration(alert.scrapes * series.scrape_s)} if alert.scrapes else {}),
        "labels": {"severity": alert.severity, "variant": untemplated(envelope.variant)},
        "annotations": {"summary": alert.summary, "description": alert.action},
    }


def _prometheus(series: Series) -> dict[str, Any]:
    interval = duration(series.scrape_s)
    jobs = {series.job: _ENGINE, WATCH_JOB: _WATCH}
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [_ALERTMANAGER]}]}]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in jobs.items()
        ],
    }


def _alertmanager(series: Series, webhook: str | None) -> dict[str, Any]:
    receiver: dict[str, Any] = {"name": "whet"}
    if webhook is not None:
        receiver["webhook_configs"] = [{"url": webhook, "send_resolved": True}]
    return {
        "route": {
            "receiver": "whet",
            "group_by": ["alertname", "cause"],
            "group_wait": duration(_GROUP_WAIT_SCRAPES * series.scrape_s),
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [{"matchers": ['severity="page"'], "repeat_interval": "1h"}],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="WhetEngineDown"'],
                "target_matchers": ['alertname!="WhetEngineDown"'],
            }
        ],
        "receivers": [receiver],
    }
