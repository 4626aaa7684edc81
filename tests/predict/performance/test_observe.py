"""The recorded run on an H200 as observations, and what the stored coefficients make of them."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.accuracy import observations_of
from benchmarks.fit import predict_latencies

from tests.metrics.events import event, trial
from whet.core.load import Load
from whet.core.run import Run
from whet.demo.bundled import RECORDED
from whet.predict.hardware import CUDA
from whet.predict.performance.coefficients import calibration_of
from whet.predict.performance.observe import Observation, timed_requests


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(scratch)  # filters came with 3.11.4
    return scratch / "run"


@pytest.fixture(scope="module")
def recorded(folder: Path) -> list[Observation]:
    return observations_of(Run.read(folder))


def of(rows: Sequence[Observation], variant: str, in_flight: int) -> Observation:
    return next(
        each for each in rows if each.group.endswith(f" {variant}") and each.in_flight == in_flight
    )


def test_every_trial_of_a_closed_loop_is_one(recorded: list[Observation]) -> None:
    assert len(recorded) >= 36
    assert {each.in_flight for each in recorded} == {4, 32, 128}


def test_a_variant_that_several_engines_serve_is_left_out(
    folder: Path, recorded: list[Observation], tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "run")
    file = tmp_path / "run" / "variants" / "fp16+cache.json"
    resolved = json.loads(file.read_text())
    resolved["variant"]["layout"] = {"decode": 2, "prefill": 0, "connector": None}
    file.write_text(json.dumps(resolved))
    two = {each.group.rpartition(" ")[2] for each in observations_of(Run.read(tmp_path / "run"))}
    assert two == {each.group.rpartition(" ")[2] for each in recorded} - {"fp16+cache"}


def test_the_requests_are_those_that_were_sent(recorded: list[Observation]) -> None:
    cached, plain = of(recorded, "fp16+cache", 32), of(recorded, "fp16", 32)
    assert {each.shared for each in cached.requests} == {1024}
    assert {each.shared for each in plain.requests} == {0}
    assert 1100 < np.mean([each.prompt for each in cached.requests]) < 1160
    assert (cached.limits.batched_tokens, cached.limits.kv_tokens) == (8192, 94592)


def test_the_work_is_that_of_the_weights_and_of_the_head(recorded: list[Observation]) -> None:
    wide, narrow = of(recorded, "fp16+cache", 32), of(recorded, "fp8+eagle3+cache", 32)
    assert narrow.work.weight_bytes / wide.work.weight_bytes == pytest.approx(0.5, abs=0.01)
    assert narrow.draft is not None
    assert narrow.draft.tokens == 2
    assert 2.3 < narrow.draft.length < 2.6
    assert (narrow.limits.front_share, wide.limits.front_share) == (0.25, 1.0)


def test_coefficients_of_another_machine_and_other_loads_predict_it(
    recorded: list[Observation],
) -> None:
    own, sheet = calibration_of("H200").coefficients, CUDA["H200"].sheet
    rows = [(predict_latencies(each, own, sheet), each.measured) for each in recorded]
    for metric, median in (("tpot", 0.15), ("e2e", 0.15), ("ttft", 0.4)):
        errors = [abs(np.log(getattr(one, metric) / getattr(two, metric))) for one, two in rows]
        assert np.median(errors) < median, metric


def test_requests_of_a_rate_keep_their_arrivals() -> None:
    sent = trial([event(index=index, start_ms=250.0 * index) for index in range(4)])
    rows = timed_requests(replace(sent, load=Load.rate(4.0), loop="open"), shared=0)
    assert rows is not None
    assert [each.arrival_s for each in rows[0]] == [0.0, 0.25, 0.5, 0.75]
    assert rows[1].ttft == pytest.approx(0.010)
