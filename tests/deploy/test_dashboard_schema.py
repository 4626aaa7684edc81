"""The dashboard in Grafana's own schema: its SDK reads it and writes the same keys again.

Grafana itself is not packaged for Debian and is not run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.test_alerts import RECORDED
from whet.core.records.codec import decode
from whet.core.records.envelope import Envelope
from whet.deploy.monitoring import monitoring_files

_CHECK = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

def lost(wanted, written, path=""):
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            known = isinstance(written, dict) and key in written
            yield from lost(value, written[key], f"{path}/{key}") if known else [f"{path}/{key}"]
    elif isinstance(wanted, list):
        for at, value in enumerate(wanted):
            yield from lost(value, written[at], f"{path}/{at}")
    elif wanted != written:
        yield path

wanted = json.load(open(sys.argv[1]))
written = json.loads(JSONEncoder().encode(Dashboard.from_json(wanted)))
print(list(lost(wanted, written)))
"""


@pytest.mark.full
def test_grafanas_sdk_reads_the_whole_dashboard(tmp_path: Path) -> None:
    envelope = decode(Envelope, json.loads((RECORDED / "envelope.json").read_text()))
    board = tmp_path / "board.json"
    files = monitoring_files(envelope, edges_s={})
    board.write_text(files["monitoring/grafana/dashboards/whet.json"])
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "grafana-foundation-sdk"], check=True)
    done = subprocess.run([python, "-c", _CHECK, board], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
