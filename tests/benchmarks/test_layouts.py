"""The specs of eight GPUs pass ``whet check`` and have the layouts that were predicted."""

import shutil
from pathlib import Path

import pytest
import yaml
from benchmarks.layouts import PLANS, write_shapes

from tests.cli.stage import Whet
from whet.checkpoint import read_facts
from whet.flow.plan.parallelism import parse_parallel

LAB = Path(__file__).parents[2] / "lab"
SPECS = {"70b": LAB / "x8_layouts.yaml", "30b-a3b": LAB / "x8_experts.yaml"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("x8")
    write_shapes(folder, headers_only=True)
    for spec in SPECS.values():
        shutil.copy(spec, folder)
    return folder


def test_the_shapes_are_the_published_ones_without_most_of_the_vocabulary(work: Path) -> None:
    large, experts = read_facts(work / "70b"), read_facts(work / "30b-a3b")
    assert large.parameters == 70_553_706_496 - 2 * (128256 - 4096) * 8192
    assert experts.parameters == 30_532_122_624 - 2 * (151936 - 4096) * 2048
    assert experts.active_parameters is not None
    schemes = {name: read_facts(work / name).stored.scheme for name in ("70b-fp8", "70b-w4")}
    assert schemes == {"70b-fp8": "FP8", "70b-w4": "W4A16"}


@pytest.mark.parametrize("model", SPECS)
def test_a_spec_is_accepted_for_eight_gpus(model: str, work: Path, whet: Whet) -> None:
    said = whet("check", work / SPECS[model].name, "--device", "8x H200")
    assert said.code == 0, said.err


@pytest.mark.parametrize(("model", "layouts", "sizes"), [(p[0], p[1], p[3]) for p in PLANS])
def test_what_is_measured_is_what_was_predicted(model: str, layouts: str, sizes: str) -> None:
    spec = yaml.safe_load(SPECS[model].read_text())
    assert spec["load"]["batch_sizes"] == [int(each) for each in sizes.split(",")]
    flags = [variant["args"] for variant in spec["variants"].values()]
    for layout in parse_parallel(layouts):
        assert dict(layout.args) in flags
