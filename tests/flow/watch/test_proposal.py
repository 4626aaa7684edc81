"""From a cause to a spec that a run takes, and from a run to a proposal."""

import tarfile
import time
from pathlib import Path

import pytest
import yaml

from whet.core.errors import UsageError
from whet.core.run import Run
from whet.core.spec import Spec, load_spec
from whet.flow.watch.proposal import Retune, visible_devices, write_proposal
from whet.watch.causes import CAUSES, Finding

PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo" / "run.tar.xz"
BY_NAME = {cause.name: cause for cause in CAUSES}


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return Run.read(tmp_path / "run").require_spec()


def propose(folder: Path, spec: Spec, cause: str, variant: str = "spec+cache") -> Spec:
    finding = Finding(cause=BY_NAME[cause], evidence=("the figures",))
    path = write_proposal(folder, spec, variant, finding)
    assert "# the figures" in path.read_text().replace("#   ", "# ")
    return load_spec(path)


@pytest.mark.parametrize("cause", [name for name, cause in BY_NAME.items() if cause.levers])
def test_every_proposal_is_a_spec_that_measures_the_deployed_variant(
    tmp_path: Path, spec: Spec, cause: str
) -> None:
    proposed = propose(tmp_path, spec, cause)
    assert {"spec+cache", spec.baseline} <= set(proposed.variants)
    assert proposed.quality == spec.quality
    assert proposed.objective == spec.objective


def test_a_run_is_restricted_to_the_levers_in_question(tmp_path: Path, spec: Spec) -> None:
    proposed = propose(tmp_path, spec, "draft_changed")
    assert list(proposed.variants) == ["fp16", "fp16+cache", "spec+cache"]
    assert proposed.load.together == (("fp16+cache", "spec+cache"),)
    assert list(propose(tmp_path, spec, "answers_changed").variants) == [
        "fp16",
        "spec+cache",
        "awq+spec+cache",
    ]


def test_a_variant_without_the_lever_is_added(tmp_path: Path, spec: Spec) -> None:
    proposed = propose(tmp_path, spec, "prefix_cache_off")
    added = proposed.variants["spec+cache-no-prefix-cache"]
    assert not added.prefix_cache
    assert added.speculation is not None


def test_a_cause_of_load_adds_a_larger_one(tmp_path: Path, spec: Spec) -> None:
    assert propose(tmp_path, spec, "load_above_measured").load.batch_sizes == (1, 8, 16)


@pytest.mark.parametrize(("device", "visible"), [("cpu", ""), ("cuda:1", "1")])
def test_devices(device: str, visible: str) -> None:
    assert visible_devices(device) == visible


@pytest.mark.parametrize("device", ["nvidia", "cuda", "cuda:", "cpu:0", "", "cuda:x"])
def test_what_is_no_device(device: str) -> None:
    with pytest.raises(UsageError, match="write cpu, or cuda:1"):
        visible_devices(device)


def test_a_run_that_fails_ends_in_a_proposal_too(tmp_path: Path, spec: Spec) -> None:
    """The stored checkpoint paths do not exist here, so the run refuses to start."""
    finding = Finding(cause=BY_NAME["draft_changed"], evidence=())
    path = write_proposal(tmp_path / "proposals", spec, "spec+cache", finding)
    retune = Retune.start(path, "spec+cache", "cpu")
    deadline = time.monotonic() + 120
    while (proposal := retune.finished()) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert proposal is not None
    assert "Nothing was switched" in proposal.read_text()
    assert "error:" in path.with_suffix(".log").read_text()
    assert yaml.safe_load(path.read_text())["name"] == "demo-draft-changed"
