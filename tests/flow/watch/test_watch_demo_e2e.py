"""A fault on a real server reaches a webhook: vLLM, Prometheus, Alertmanager and ``whet watch``.

The healthy phase, and the restart with the fault, are those of ``make watch-demo``.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
import tarfile
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from scripts.watch_demo import (
    CAUSE,
    SCRAPE_S,
    Deployment,
    Webhook,
    await_alerts,
    permuted_draft,
    whet,
)

from whet.demo import pair_paths
from whet.demo.bundled import CHAT_LOG
from whet.deploy.monitoring import notification_delay_s
from whet.engines.process import free_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.alone,
    pytest.mark.full,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("prometheus-alertmanager") is None,
        reason="no Prometheus: apt-get install prometheus prometheus-alertmanager",
    ),
]
PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo" / "run.tar.xz"


def empty_queries(bundle: Path, prometheus: str) -> set[str]:
    """Panels whose queries have no data in this Prometheus; every query has to be answered."""
    path = bundle / "monitoring" / "grafana" / "dashboards" / "whet.json"
    empty = set()
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = urlencode({"query": target["expr"]})
            with urlopen(f"{prometheus}/api/v1/query?{query}", timeout=10) as reply:
                answer = json.load(reply)
            assert answer["status"] == "success"
            if not answer["data"]["result"]:
                empty.add(panel["title"])
    return empty


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The published run, with the demo pair where it is on this machine."""
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    target, draft = map(str, pair_paths())
    path = tmp_path / "run" / "variants" / "draft+cache.json"
    text = path.read_text().replace('\\"draft\\"', json.dumps(draft).replace('"', '\\"'))
    record = json.loads(text)
    record["variant"]["model_path"] = target
    record["variant"]["speculation"]["draft_path"] = draft
    at = record["argv"].index("--model") + 1
    record["argv"][at] = target
    path.write_text(json.dumps(record))
    monkeypatch.setenv("WHET_PYTHON", sys.executable)
    return tmp_path / "run"


def test_a_useless_draft_reaches_the_webhook_in_the_stated_time(run: Path, tmp_path: Path) -> None:
    log, bundle, webhook = tmp_path / "log.jsonl", tmp_path / "bundle", Webhook()
    log.write_bytes(lzma.decompress(CHAT_LOG.read_bytes()))
    webhook.start()
    whet("deploy", run, "-o", bundle, "--scrape-interval", SCRAPE_S, "--webhook", webhook.url)
    here = Deployment(bundle, tmp_path / "logs", log)
    try:
        here.serve(permuted_draft(bundle, tmp_path))
        here.fit()
        with here.monitored(free_port()), here.watched(tmp_path / "watch"), here.traffic():
            began = time.time()
            arrived = await_alerts(webhook, began, notification_delay_s(SCRAPE_S) + 10)
            empty = empty_queries(bundle, f"http://127.0.0.1:{here.prometheus}")
    finally:
        here.stop()
    assert arrived, webhook.names()
    assert empty == set()
    assert (tmp_path / "watch" / "proposals" / f"{CAUSE}.yaml").exists()
    journal = (tmp_path / "watch" / "journal.jsonl").read_text().splitlines()
    causes = [json.loads(line)["cause"] for line in journal if '"kind": "alarm"' in line]
    assert CAUSE in causes
