"""``whet calibrate`` from stored runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ci.planted import CPU_DEMO, H200, unpack
from tests.flow.run.test_quantize import Heard
from whet.core.errors import UsageError
from whet.flow.calibrate import calibrate
from whet.predict.performance import read_calibration


@pytest.mark.full
def test_a_run_gives_coefficients_that_plan_reads_and_the_error_of_cells_left_out(
    tmp_path: Path,
) -> None:
    run, out = unpack(CPU_DEMO, tmp_path / "demo"), tmp_path / "mine.json"
    done = calibrate([run], out, Heard())
    document = json.loads(out.read_text())
    assert document["cells"] == done.cells >= 8
    assert 0 < document["errors"]["e2e"] < 1
    read = read_calibration(out).coefficients
    assert read.kv_bandwidth == pytest.approx(done.coefficients.kv_bandwidth, rel=1e-3)


def test_runs_of_two_machines_are_not_fitted_together(tmp_path: Path) -> None:
    runs = [unpack(CPU_DEMO, tmp_path / "demo"), unpack(H200, tmp_path / "h200")]
    with pytest.raises(UsageError, match="of another machine"):
        calibrate(runs, tmp_path / "out.json", Heard())
