"""The specs of several GPUs pass ``whet check`` and have the layouts that were predicted."""

import shutil
from pathlib import Path

import pytest
import yaml
from benchmarks.layouts import PLANS, Plan, write_shapes

from tests.cli.stage import Whet
from whet.checkpoint import read_facts
from whet.flow.plan.parallelism import parse_parallel

LAB = Path(__file__).parents[2] / "lab"
_LAYOUT = {
    *("tensor_parallel_size", "data_parallel_size", "api_server_count"),
    "enable_expert_parallel",
}
SPECS = sorted(LAB.glob("x?_*.yaml"))


def spec_of(host: str, model: str) -> Path:
    return LAB / f"{host}_{'layouts' if model == '70b' else 'experts'}.yaml"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("x8")
    write_shapes(folder)
    for spec in SPECS:
        shutil.copy(spec, folder)
    return folder


def test_the_shapes_are_the_published_ones_without_most_of_the_vocabulary(work: Path) -> None:
    large, experts = read_facts(work / "70b"), read_facts(work / "30b-a3b")
    assert large.parameters == 70_553_706_496 - 2 * (128256 - 4096) * 8192
    assert experts.parameters == 30_532_122_624 - 2 * (151936 - 4096) * 2048
    assert experts.active_parameters is not None
    schemes = {name: read_facts(work / name).stored.scheme for name in ("70b-fp8", "70b-w4")}
    assert schemes == {"70b-fp8": "FP8", "70b-w4": "W4A16"}


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_a_spec_is_accepted_on_its_gpus(spec: Path, work: Path, whet: Whet) -> None:
    said = whet("check", work / spec.name, "--device", f"{spec.name[1]}x H200")
    assert said.code == 0, said.err


@pytest.mark.parametrize(("host", "plan"), [(host, plan) for host in PLANS for plan in PLANS[host]])
def test_what_is_measured_is_what_was_predicted(host: str, plan: Plan) -> None:
    spec = yaml.safe_load(spec_of(host, plan.model).read_text())
    assert spec["load"]["batch_sizes"] == [int(each) for each in plan.sizes.split(",")]
    flags = [variant.get("args", {}) for variant in spec["variants"].values()]
    layouts = [{name: each[name] for name in each if name in _LAYOUT} for each in flags]
    for layout in parse_parallel(plan.layouts):
        assert dict(layout.args) in layouts
