"""From a cause to a spec that a run takes."""

import tarfile
from pathlib import Path

import pytest
import yaml

from whet.core.run import Run
from whet.core.spec import Spec, load_spec
from whet.watch.causes import CAUSES, Finding, write_proposal

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
BY_NAME = {cause.name: cause for cause in CAUSES}


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return Run.read(tmp_path / "run").require_spec()


def propose(folder: Path, spec: Spec, cause: str, variant: str = "draft+cache") -> Spec:
    finding = Finding(cause=BY_NAME[cause], evidence=("the figures",))
    path = write_proposal(folder, spec, variant, finding)
    assert "# the figures" in path.read_text().replace("#   ", "# ")
    return load_spec(path)


@pytest.mark.parametrize("cause", [name for name, cause in BY_NAME.items() if cause.levers])
def test_every_proposal_is_a_spec_that_measures_the_deployed_variant(
    tmp_path: Path, spec: Spec, cause: str
) -> None:
    proposed = propose(tmp_path, spec, cause)
    assert {"draft+cache", spec.baseline} <= set(proposed.variants)
    assert proposed.quality == spec.quality
    assert proposed.objective == spec.objective


def test_a_run_is_restricted_to_the_levers_in_question(tmp_path: Path, spec: Spec) -> None:
    proposed = propose(tmp_path, spec, "draft_changed")
    assert list(proposed.variants) == ["fp16", "fp16+cache", "draft+cache"]
    assert list(propose(tmp_path, spec, "answers_changed").variants) == [
        "fp16",
        "draft+cache",
        "awq+draft+cache",
    ]


def test_a_variant_without_the_lever_is_added(tmp_path: Path, spec: Spec) -> None:
    proposed = propose(tmp_path, spec, "prefix_cache_off")
    added = proposed.variants["draft+cache-no-prefix-cache"]
    assert not added.prefix_cache
    assert added.speculation is not None


def test_a_cause_of_load_adds_a_larger_one(tmp_path: Path, spec: Spec) -> None:
    assert propose(tmp_path, spec, "load_above_measured").load.concurrency == (1, 8, 16)


def test_evidence_with_line_ends_stays_a_comment(tmp_path: Path, spec: Spec) -> None:
    """A server's ``/version`` once wrote an ``engine`` of its own into the proposed spec."""
    evil = "0.32.1\nengine: {python: /tmp/x}\r\nengine: {python: /tmp/y}\u2028engine: {}\n#"
    finding = Finding(cause=BY_NAME["engine_version"], evidence=(evil,))
    path = write_proposal(tmp_path / "proposals", spec, "draft+cache", finding)
    assert load_spec(path).engine == spec.engine
    assert yaml.safe_load(path.read_text()).keys() <= spec.model_dump().keys()
