"""From a stored run to a bundle: what is refused, what is written, what is kept for rollback."""

from __future__ import annotations

import json
import shlex
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core.errors import (
    MeasurementError,
    NothingQualifiesError,
    StorageError,
    UsageError,
)
from whet.core.load import Load
from whet.core.records.bundle import Bundle
from whet.core.records.codec import encode
from whet.core.records.decision import Decision, Excluded, Fleet
from whet.core.records.envelope import Envelope
from whet.core.run import Run
from whet.core.store import write_json
from whet.flow.deploy import folder as folder_module
from whet.flow.deploy.bundle import deploy
from whet.flow.deploy.folder import read_bundle, replace_bundle, steps_of
from whet.flow.deploy.options import DeployOptions

PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo" / "run.tar.xz"
KEY = "a key that nobody may read"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return tmp_path / "run"


def decided(root: Path, **change: Any) -> Run:
    """The run with another decision."""
    decision = Run.read(root).decision
    assert decision is not None
    write_json(root / "decision.json", replace(decision, **change))
    return Run.read(root)


def without(decision: Decision, *variants: str) -> dict[str, Any]:
    """The cells of a decision in which ``variants`` miss the objective."""
    cells = (
        replace(c, status="misses", detail="TTFT p95") if c.variant in variants else c
        for c in decision.cells
    )
    return {"cells": tuple(cells)}


def options(tmp_path: Path, **change: Any) -> DeployOptions:
    return DeployOptions(**{"output_dir": tmp_path / "out", **change})


# What cannot be deployed.


def test_a_run_without_a_decision_is_unfinished(root: Path, tmp_path: Path) -> None:
    (root / "decision.json").unlink()
    with pytest.raises(MeasurementError, match=r"has no decision.* finish it with whet run"):
        deploy(Run.read(root), options(tmp_path))


def test_a_run_without_a_recommendation_names_what_qualifies(root: Path, tmp_path: Path) -> None:
    run = decided(root, recommendation=None)
    with pytest.raises(NothingQualifiesError, match=r"--variant \(fp16, fp16\+cache"):
        deploy(run, options(tmp_path))
    assert deploy(run, options(tmp_path, variant="fp16")).bundle.variant == "fp16"


def test_a_run_in_which_nothing_qualifies(root: Path, tmp_path: Path) -> None:
    decision = Run.read(root).decision
    assert decision is not None
    run = decided(root, recommendation=None, **without(decision, *Run.read(root).variants))
    with pytest.raises(NothingQualifiesError, match=r"recommends nothing.* run it again"):
        deploy(run, options(tmp_path))


def test_a_variant_that_does_not_qualify_is_refused_with_the_reason(
    root: Path, tmp_path: Path
) -> None:
    decision = Run.read(root).decision
    assert decision is not None
    run = decided(root, excluded=(), **without(decision, "awq+draft+cache"))
    with pytest.raises(UsageError, match="does not qualify: misses TTFT p95; choose one that"):
        deploy(run, options(tmp_path, variant="awq+draft+cache"))
    lost = Excluded(variant="fp16", load=None, reason="its answers\ndiffer")
    run = decided(root, excluded=(lost,), **without(decision, "fp16"))
    with pytest.raises(UsageError, match="fp16 does not qualify: its answers differ; choose"):
        deploy(run, options(tmp_path, variant="fp16"))
    assert not (tmp_path / "out").exists()


def test_an_unknown_variant_is_named_with_the_nearest(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no variant 'draft\+cach'; did you mean 'draft\+cache'"):
        deploy(Run.read(root), options(tmp_path, variant="draft+cach"))


def test_an_attached_server_has_no_command_to_deploy(root: Path, tmp_path: Path) -> None:
    path = root / "variants" / "draft+cache.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"url": "http://elsewhere:8000"}))
    why = r"did not start .http://elsewhere:8000.*that whet starts"
    with pytest.raises(UsageError, match=why):
        deploy(Run.read(root), options(tmp_path))


def test_an_engine_without_manifests_says_how_to_start_it(root: Path, tmp_path: Path) -> None:
    path = root / "variants" / "draft+cache.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"engine": "sglang", "serve_line": "sglang -m x"}))
    why = "runs on SGLang, which whet deploy has no manifests for.*: sglang -m x$"
    with pytest.raises(UsageError, match=why):
        deploy(Run.read(root), options(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_tag": "v1 latest"}, "--image-tag 'v1 latest' is not a tag"),
        ({"namespace": "llm"}, "--namespace belongs to Kubernetes"),
        ({"namespace": "My_Space", "target": "k8s"}, "--namespace 'My_Space' is not a Kubernetes"),
        ({"scrape_interval": 0.0}, "--scrape-interval must be from 1 to 120"),
        ({"scrape_interval": float("nan")}, "--scrape-interval must be from 1 to 120"),
    ],
)
def test_options_that_no_target_takes(
    root: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        deploy(Run.read(root), options(tmp_path, **change))


def test_a_folder_of_other_files_is_left_alone(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UsageError, match="holds other files; choose another --output-dir"):
        deploy(Run.read(root), options(tmp_path))
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]
    mine.unlink()
    deploy(Run.read(root), options(tmp_path))
    (tmp_path / "out" / "bundle.json").write_text("{")
    with pytest.raises(StorageError, match=r"bundle.json is damaged: .*; move .*out away"):
        deploy(Run.read(root), options(tmp_path))


# What is written.


def test_the_record_says_what_is_deployed(root: Path, tmp_path: Path) -> None:
    run = Run.read(root)
    assert run.decision is not None
    deployed = deploy(run, options(tmp_path))
    bundle = read_bundle(tmp_path / "out")
    assert bundle == deployed.bundle
    assert isinstance(bundle, Bundle)
    assert (bundle.run, bundle.variant, bundle.load) == ("demo", "draft+cache", Load.at(8))
    assert bundle.image == "vllm/vllm-openai:v0.32.0"
    assert bundle.weights_sha256 == run.models["target"].weights_sha256
    assert " --speculative-config " in bundle.serve_line
    assert (bundle.target, bundle.name, bundle.namespace) == ("compose", "vllm-target", None)
    envelope = json.loads((tmp_path / "out" / "watch" / "envelope.json").read_text())
    assert set(envelope) == set(Envelope.__slots__)
    cells = (replace(cell, status="qualifies") for cell in run.decision.cells)
    run = decided(root, cells=tuple(cells))
    quantized = deploy(run, options(tmp_path, variant="awq+draft+cache")).bundle
    assert quantized.weights_sha256 == run.quantized["awq"].weights_sha256
    assert quantized.name == bundle.name, "so that it takes the place of the other"


def test_every_target_is_written_and_the_demand_sets_the_replicas(
    root: Path, tmp_path: Path
) -> None:
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
    fleet = Fleet(demand_rps=9.0, rate_rps=3.0, servers=3, usd_per_month=1.0)
    run = decided(root, recommendation=replace(decision.recommendation, fleet=fleet))
    for target in ("compose", "k8s", "kserve", "llm-d"):
        out = tmp_path / target
        deploy(run, options(tmp_path, target=target, output_dir=out))
        names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert {"bundle.json", "watch/envelope.json", "serve.sh", ".env.example"} <= names
        assert {"monitoring/rules.yml", "monitoring/grafana/dashboards/whet.json"} <= names
        assert ("monitoring/prometheus.yml" in names) is (target == "compose")
    (manifest,) = yaml.safe_load_all((tmp_path / "k8s" / "deployment.yaml").read_text())
    assert manifest["spec"]["replicas"] == 3
    rules = yaml.safe_load((tmp_path / "k8s" / "monitoring" / "rules.yml").read_text())
    _, rule = yaml.safe_load_all((tmp_path / "k8s" / "monitoring.yaml").read_text())
    assert rule["spec"]["groups"] == rules["groups"]
    assert deploy(run, options(tmp_path, variant="fp16")).bundle.replicas == 1


def test_the_edges_of_the_alerts_are_edges_of_the_engine(root: Path, tmp_path: Path) -> None:
    """An alert on ``le="2.0"`` fires only if the histogram has that edge."""
    deploy(Run.read(root), options(tmp_path, scrape_interval=5.0))
    compose = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())
    words = compose["services"]["vllm"]["command"]
    families = json.loads(words[words.index("--custom-histogram-buckets") + 1])
    envelope = json.loads((tmp_path / "out" / "watch" / "envelope.json").read_text())
    assert envelope["ttft_limit_ms"] / 1000 in families["time_to_first_token"]
    rules = (tmp_path / "out" / "monitoring" / "rules.yml").read_text()
    assert f'time_to_first_token_seconds_bucket{{model_name="target",le="{2.0!r}"}}' in rules
    prometheus = yaml.safe_load((tmp_path / "out" / "monitoring" / "prometheus.yml").read_text())
    assert prometheus["global"]["scrape_interval"] == "5s"


def test_no_secret_of_the_environment_is_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, KEY)
    for target in ("compose", "k8s", "kserve", "llm-d"):
        deploy(Run.read(root), options(tmp_path, target=target))
    written = [path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not any(KEY in text for text in written)


# The bundle before.


def test_the_bundle_before_is_kept_once_and_the_keys_stay(root: Path, tmp_path: Path) -> None:
    run, out = Run.read(root), tmp_path / "out"
    deploy(run, options(tmp_path, variant="fp16"))
    (out / ".env").write_text(f"VLLM_API_KEY={KEY}\n")
    (out / ".env").chmod(0o600)
    deploy(run, options(tmp_path, variant="fp16+cache"))
    third = deploy(run, options(tmp_path))
    assert third.previous is not None
    assert third.previous.variant == "fp16+cache"
    assert read_bundle(out / "previous") == third.previous
    assert not (out / "previous" / "previous").exists()
    assert (out / "previous" / "compose.yaml").exists()
    holders = [path for path in out.rglob("*") if path.is_file() and KEY in path.read_text()]
    assert holders == [out / ".env"]
    assert (out / ".env").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("point", ["write", "rename"])
def test_a_failure_leaves_the_folder_as_it_was(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    run, out = Run.read(root), tmp_path / "out"
    deploy(run, options(tmp_path, variant="fp16"))
    (out / ".env").write_text(KEY)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*_args: Any) -> None:
        raise StorageError("the disk is full")

    if point == "write":
        monkeypatch.setattr(folder_module, "write_file", full)
    else:
        monkeypatch.setattr("whet.core.staging.Stage.keep", full)
    with pytest.raises(StorageError, match="the disk is full"):
        deploy(run, options(tmp_path))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_kill_between_the_renames_is_repaired_by_the_next_command(tmp_path: Path) -> None:
    aside = tmp_path / ".out.replaced"
    aside.mkdir()
    record = Bundle(
        run="r",
        variant="v",
        load=Load.at(1),
        engine="vllm",
        engine_version="1",
        image="i",
        model="m",
        checkpoint="c",
        revision=None,
        weights_sha256=None,
        target="k8s",
        device="cuda",
        name="n",
        namespace="s",
        replicas=1,
        written_at="now",
        serve_line="l",
    )
    (aside / "bundle.json").write_text(json.dumps(encode(record)))
    replace_bundle(tmp_path / "out", {"new.txt": "new"})
    assert read_bundle(tmp_path / "out" / "previous") == record
    assert not aside.exists()


def test_the_printed_commands_name_files_that_are_there(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "a folder" / "out"
    for target in ("compose", "k8s", "kserve", "llm-d", "compose"):
        done = deploy(Run.read(root), options(tmp_path, target=target, output_dir=out))
        assert done.bundle.device == "cpu"
        here = steps_of(done.bundle, out, done.previous)
        assert here["Start"] == [f"sh '{out}'/serve.sh"]
        gpu = replace(done.bundle, device="cuda")
        previous = done.previous and replace(done.previous, device="cuda")
        there = steps_of(gpu, out, previous)
        assert [*there["Start"], *there.get("Monitor", ())] == here["On a GPU"]
        assert here["Watch"] == there["Watch"]
        steps = [step for each in (here, there) for steps in each.values() for step in steps]
        named = {
            Path(word.removeprefix("--from-env-file="))
            for step in steps
            for word in shlex.split(step, comments=True)
            if str(tmp_path) in word
        }
        missing = {path.name for path in named if not path.exists()}
        assert missing == {".env"}, "the keys are the reader's to write"


@pytest.mark.parametrize("target", ["compose", "k8s", "kserve", "llm-d"])
def test_a_limit_is_in_every_file_that_is_deployed(root: Path, tmp_path: Path, target: Any) -> None:
    stated = "greedy requests only:\n- injected: true\x1b[31m"
    decision = Run.read(root).decision
    assert decision is not None
    cells = tuple(replace(cell, limits=(stated,)) for cell in decision.cells)
    deploy(decided(root, cells=cells), options(tmp_path, target=target))
    out = tmp_path / "out"
    files = [p for p in out.rglob("*") if p.suffix in (".sh", ".yaml", ".yml")]
    assert {"serve.sh", "kustomization.yaml" if target != "compose" else "compose.yaml"} <= {
        path.name for path in files
    }
    for path in files:
        head = path.read_text().splitlines()[:3]
        assert any(
            line.startswith("# Limit: greedy requests only: - injected: true") for line in head
        ), path
        assert "\x1b" not in path.read_text()
        if path.suffix != ".sh":
            assert "injected" not in str(list(yaml.safe_load_all(path.read_text())))
    bundle = read_bundle(out)
    assert bundle is not None
    assert bundle.limits[0] == stated


def test_a_fault_that_is_known_since_the_decision_refuses_a_variant(
    root: Path, tmp_path: Path
) -> None:
    (root / "traffic" / "log.json").unlink()
    with pytest.raises(NothingQualifiesError, match=r"samples wrong text .* was not stored"):
        deploy(Run.read(root), options(tmp_path))
