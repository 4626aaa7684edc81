"""Alert rules on what real servers exported: the healthy one is silent, each fault has its alert.

The recordings in ``recorded/`` are of vLLM 0.32 on a CPU, one scrape a second.
Prometheus' own tool evaluates the rules.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core import counters
from whet.core.load import Load
from whet.core.records.codec import decode
from whet.core.records.envelope import Envelope
from whet.core.run import Run
from whet.deploy.monitoring import monitoring_files, notification_delay_s
from whet.deploy.monitoring.series import exact_edges_s
from whet.engines.vllm.deployment import bucket_edges
from whet.watch.source import envelope_of

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus"
)
HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)")
FAULTS = {
    "draft-permuted": {"WhetAcceptanceLengthBelowMeasured", "WhetAcceptanceRateBelowFloor"},
    "draft-replaced-by-a-weaker-one": {"WhetAcceptanceRateBelowFloor"},
    "draft-removed": {"WhetSpeculationOff"},
    "prefix-cache-off": {"WhetPrefixCacheOff", "WhetFlagsChanged"},
    "other-flags": {"WhetFlagsChanged"},
    "wrong-model": {"WhetWrongModel"},
    "queue-grows": {"WhetQueueGrowing"},
    "KV-cache-exhausted": {"WhetPreemptions"},
}
CLAIMS = {"WhetSpeculationOff", "WhetPrefixCacheOff", "WhetFlagsChanged", "WhetWrongModel"}


@pytest.fixture(scope="module")
def envelope() -> Envelope:
    """That of the run on the machine of the recordings."""
    return decode(Envelope, json.loads((RECORDED / "envelope.json").read_text()))


def rules_of(envelope: Envelope, scrape_s: float, folder: Path) -> dict[str, Any]:
    """Write the rule file, checked by promtool, and return it."""
    edges = bucket_edges(exact_edges_s(envelope), "0.32.0")
    files = monitoring_files(envelope, edges_s=edges, scrape_interval_s=scrape_s)
    path = folder / "rules.yml"
    path.write_text(files["monitoring/rules.yml"])
    run(["promtool", "check", "rules", str(path)], folder)
    rules: dict[str, Any] = yaml.safe_load(path.read_text())
    return rules


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_name(rules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    every = (rule for group in rules["groups"] for rule in group["rules"])
    return {rule["alert"]: rule for rule in every if "alert" in rule}


def expect(rules: Mapping[str, Any], at: str, firing: set[str], silent: set[str]) -> list[Any]:
    """promtool's form of which alerts fire at a time, and which do not."""
    alerts = by_name(rules)
    return [
        {
            "eval_time": at,
            "alertname": name,
            "exp_alerts": [
                {
                    "exp_labels": alerts[name]["labels"],
                    "exp_annotations": alerts[name]["annotations"],
                }
            ]
            if name in firing
            else [],
        }
        for name in sorted(firing | silent)
    ]


def series_of(pages: list[str]) -> list[dict[str, str]]:
    """Recorded pages as promtool's input series, each with the job of the engine."""
    samples = [
        {f"{m[1]}{{{m[2] or ''}": m[3] for line in page.splitlines() if (m := _SAMPLE.match(line))}
        for page in pages
    ]
    names = sorted(set().union(*samples))
    series = [
        {
            "series": f'{name}{"," if not name.endswith("{") else ""}job="engine"}}',
            "values": " ".join(page.get(name, "_") for page in samples),
        }
        for name in names
    ]
    seconds = len(pages)
    return [
        *series,
        {"series": 'up{job="engine"}', "values": f"1x{seconds}"},
        {"series": "whet_watch_last_period_timestamp_seconds", "values": f"0+1x{seconds}"},
        {"series": "whet_watch_period_seconds", "values": f"60x{seconds}"},
    ]


def recorded(name: str) -> list[str]:
    return lzma.decompress((RECORDED / f"{name}.txt.xz").read_bytes()).decode().split("\f")


def check(folder: Path, rules: Mapping[str, Any], interval: str, series: Any, tests: Any) -> None:
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": interval,
        "tests": [{"interval": interval, "input_series": series, "alert_rule_test": tests}],
    }
    path = folder / "tests.yml"
    path.write_text(yaml.safe_dump(document, width=10**9))
    run(["promtool", "test", "rules", str(path)], folder)


def test_a_healthy_server_raises_no_alert(tmp_path: Path, envelope: Envelope) -> None:
    rules, pages = rules_of(envelope, 1.0, tmp_path), recorded("healthy-draft+cache")
    silent = set(by_name(rules)) - {"WhetWatchAlarm"}
    tests = [
        item
        for at in range(40, len(pages) - 1, 20)
        for item in expect(rules, f"{at}s", set(), silent)
    ]
    check(tmp_path, rules, "1s", series_of(pages), tests)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_alert(tmp_path: Path, envelope: Envelope, fault: str) -> None:
    rules, pages = rules_of(envelope, 1.0, tmp_path), recorded(fault)
    firing = FAULTS[fault]
    at = min(len(pages) - 1, int(notification_delay_s(1.0)))
    tests = expect(rules, f"{at}s", firing, CLAIMS - firing)
    check(tmp_path, rules, "1s", series_of(pages), tests)


def synthetic(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": text} for name, text in values.items()]


REQUESTS = 'http_requests_total{handler="/v1/completions",status="2xx",job="engine"}'
FAILED = 'http_requests_total{handler="/v1/completions",status="5xx",job="engine"}'
FINISHED = 'vllm:request_success_total{model_name="target",finished_reason="stop"}'
TTFT = "vllm:time_to_first_token_seconds"


@pytest.mark.parametrize(
    ("failed", "firing"),
    [
        ("0+0x90", set()),
        ("0+1x90", set()),
        ("0+30x90", {"WhetErrorBudgetFast", "WhetErrorBudgetSlow"}),
    ],
)
def test_the_error_budget(
    tmp_path: Path, envelope: Envelope, failed: str, firing: set[str]
) -> None:
    """99% of 100 requests a minute: 1% failing is the budget, a quarter burns it."""
    rules = rules_of(envelope, 15.0, tmp_path)
    series = synthetic({REQUESTS: "0+100x90", FAILED: failed, FINISHED: "0+100x90"})
    names = {"WhetErrorBudgetFast", "WhetErrorBudgetSlow"}
    check(tmp_path, rules, "1m", series, expect(rules, "80m", firing, names - firing))


def test_the_budget_of_the_first_token(tmp_path: Path, envelope: Envelope) -> None:
    """All requests are slower than the objective of 2 s."""
    rules = rules_of(envelope, 15.0, tmp_path)
    edge = float(envelope.ttft_limit_ms or 0) / 1000
    series = synthetic(
        {
            f'{TTFT}_bucket{{model_name="target",le="{edge!r}"}}': "0+0x90",
            f'{TTFT}_count{{model_name="target"}}': "0+100x90",
            FINISHED: "0+100x90",
        }
    )
    check(tmp_path, rules, "1m", series, expect(rules, "80m", {"WhetTtftBudgetFast"}, set()))


@pytest.mark.parametrize(("share", "fires"), [(0.2, True), (0.01, False)], ids=["slow", "probes"])
def test_refused_drafts_are_seen_before_a_request_ends(
    tmp_path: Path, envelope: Envelope, share: float, fires: bool
) -> None:
    """No request has finished; the watch's own probes are at most 1% of the capacity."""
    rules = rules_of(envelope, 15.0, tmp_path)
    tokens = max(1, round(share * envelope.capacity.tps * 60))
    rising = (counters.GENERATED, counters.DRAFTS, counters.DRAFT_TOKENS)
    values = {f'{name}{{model_name="target"}}': f"0+{tokens}x60" for name in rising}
    values[f'{counters.ACCEPTED}{{model_name="target"}}'] = "0+0x60"
    names = {"WhetAcceptanceLengthBelowMeasured", "WhetAcceptanceRateBelowFloor"}
    expected = expect(rules, "30m", names if fires else set(), set() if fires else names)
    check(tmp_path, rules, "1m", synthetic(values), expected)


def test_few_requests_burn_no_budget(tmp_path: Path, envelope: Envelope) -> None:
    rules = rules_of(envelope, 15.0, tmp_path)
    series = synthetic({FAILED: "0+0x70 1x20", FINISHED: "0x70 1x20"})
    check(tmp_path, rules, "1m", series, expect(rules, "85m", set(), {"WhetErrorBudgetFast"}))


@pytest.mark.parametrize(
    ("values", "alert"),
    [
        ({'up{job="engine"}': "0x60"}, "WhetEngineDown"),
        ({'up{job="engine"}': "1x60", 'python_info{job="engine"}': "1x60"}, "WhetMetricsMissing"),
        (
            {
                "whet_watch_last_period_timestamp_seconds": "0x60",
                "whet_watch_period_seconds": "60x60",
            },
            "WhetWatchStopped",
        ),
    ],
)
def test_what_is_missing(
    tmp_path: Path, envelope: Envelope, values: Mapping[str, str], alert: str
) -> None:
    rules = rules_of(envelope, 15.0, tmp_path)
    check(tmp_path, rules, "15s", synthetic(values), expect(rules, "14m", {alert}, set()))


def test_a_watch_that_is_gone_is_an_alert_and_one_that_never_was_is_not(
    tmp_path: Path, envelope: Envelope
) -> None:
    rules, name = rules_of(envelope, 15.0, tmp_path), "WhetWatchStopped"
    gone = {"whet_watch_last_period_timestamp_seconds": "0+15x10 _x300"}
    check(tmp_path, rules, "15s", synthetic(gone), expect(rules, "64m", {name}, set()))
    never = {'up{job="engine"}': "1x300"}
    check(tmp_path, rules, "15s", synthetic(never), expect(rules, "64m", set(), {name}))


def test_every_query_of_the_dashboard_is_promql(tmp_path: Path, envelope: Envelope) -> None:
    files = monitoring_files(envelope, edges_s=bucket_edges({}, "0.32.0"))
    board = json.loads(files["monitoring/grafana/dashboards/whet.json"])
    queries = [item["expr"] for panel in board["panels"] for item in panel.get("targets", ())]
    assert len(queries) > 20
    rules = [{"record": f"q:{at}", "expr": expr} for at, expr in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))
    run(["promtool", "check", "rules", str(path)], tmp_path)


def test_the_configurations_are_whole(tmp_path: Path, envelope: Envelope) -> None:
    files = monitoring_files(
        envelope, edges_s=bucket_edges({}, "0.32.0"), webhook="http://127.0.0.1:1/?code=a%2Fb&sig=c"
    )
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run(["promtool", "check", "config", "prometheus.yml"], tmp_path / "monitoring")
    if shutil.which("amtool"):
        run(["amtool", "check-config", "alertmanager.yml"], tmp_path / "monitoring")


def test_old_engines_alert_at_an_edge_that_they_have(tmp_path: Path, envelope: Envelope) -> None:
    edges = bucket_edges(exact_edges_s(envelope), "0.26.0")
    text = monitoring_files(envelope, edges_s=edges)["monitoring/rules.yml"]
    used = {
        float(edge) for edge in re.findall(r'first_token_seconds_bucket\{[^}]*le="([^"]+)"', text)
    }
    assert used
    assert used <= set(edges["time_to_first_token"])


def test_the_published_run_has_an_envelope(tmp_path: Path) -> None:
    with tarfile.open(HERE.parents[1] / "results" / "cpu-demo" / "run.tar.xz") as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    published = envelope_of(Run.read(tmp_path / "run"), "draft+cache", Load.at(8))
    lengths = published.range_of("acceptance_length")
    assert lengths is not None
    assert lengths.starts == 4
    assert lengths.limit == pytest.approx(lengths.low / 1.2, rel=0.005)
    assert published.acceptance_floor == 0.65
    assert [round(item.in_flight) for item in published.loads] == [1, 8]
    assert sum(published.prompt_tokens.shares) == pytest.approx(1)
