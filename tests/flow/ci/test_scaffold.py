"""``whet ci init``: the workflow by GitHub's schema and by its steps.

``github-workflow.json.xz`` is the schema of json.schemastore.org, as check-jsonschema 0.39 has it.
"""

from __future__ import annotations

import json
import lzma
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.checkpoint_factory import write_tiny_llama
from whet.cli.main import app
from whet.core.errors import UsageError
from whet.demo import pair_paths
from whet.flow.ci.scaffold import write_workflow

SCHEMA = Path(__file__).with_name("github-workflow.json.xz")


def write_spec(folder: Path, **change: Any) -> Path:
    data = {
        "name": "chat",
        "model": {"target": "./target"},
        "hardware": {"price_usd_per_hour": 1.0, "tier": "L4"},
        "engine": {"args": {"max_model_len": 1024}},
        "variants": {"fp16": {}, "awq": {"weights": "awq"}},
    }
    path = folder / "whet.yaml"
    path.write_text(yaml.safe_dump(data | change), encoding="utf-8")
    return path


def written(folder: Path, **change: Any) -> dict[str, Any]:
    """The workflow of a spec."""
    write_workflow(write_spec(folder, **change), folder)
    text = (folder / ".github" / "workflows" / "whet.yml").read_text()
    workflow: dict[str, Any] = yaml.safe_load(text)
    return workflow


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "target")
    return tmp_path


@pytest.mark.parametrize("target", ["./target", "owner/name"])
def test_the_workflow_is_valid_by_githubs_schema(repository: Path, target: str) -> None:
    workflow = written(repository, model={"target": target})
    schema = json.loads(lzma.decompress(SCHEMA.read_bytes()))
    # YAML 1.1 reads the key `on` as true; GitHub does not.
    workflow["on"] = workflow.pop(True)
    assert list(Draft7Validator(schema).iter_errors(workflow)) == []
    broken = workflow | {"jobs": {"gate": {"runs-on": "x", "steps": [{"runs": "no such key"}]}}}
    assert list(Draft7Validator(schema).iter_errors(broken)) != []


def test_the_gpu_job_runs_only_commands_that_exist(repository: Path) -> None:
    workflow = written(repository)
    lines = [step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step]
    own = [shlex.split(line.partition("||")[0])[1:] for line in lines if line.startswith("whet ")]
    assert [words[0] for words in own] == ["check", "run", "ci"]
    for words in own:
        app.parse_args(words, exit_on_error=False, print_error=False)


def run_steps(workflow: dict[str, Any], folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """The shell steps of the hosted job, as a runner would; whet is installed already."""
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = os.environ | workflow["env"] | own | {"RUNNER_TEMP": str(folder / "temp")}
    return [
        subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for step in workflow["jobs"]["smoke"]["steps"]
        if "run" in step and step["name"] != "Install"
    ]


def test_whet_is_installed_from_a_clone(repository: Path) -> None:
    """No version is published; a missing clone stops the job with a sentence."""
    workflow = written(repository)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    installs = [step["run"] for step in steps if step.get("name") == "Install"]
    assert len(installs) == 2
    assert 'pip install "$WHET"' in installs[0]
    assert 'pip" install "$WHET[gpu]"' in installs[1]
    assert not any("whet==" in run or "whet[gpu]==" in run for run in installs)
    done = subprocess.run(
        ["bash", "-e", "-c", installs[0]],
        cwd=repository,
        env=os.environ | workflow["env"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "::error::./whet holds no clone of whet\n")


@pytest.mark.full
def test_the_hosted_job_runs_without_a_gpu(tmp_path: Path) -> None:
    target, _ = pair_paths()
    (tmp_path / "target").symlink_to(target)
    workflow = written(tmp_path)
    assert workflow["env"] == {
        "SPEC": "whet.yaml",
        "BASELINE": "baseline",
        "WHET": "./whet",
        "GPU": "L4",
    }
    check, replay = run_steps(workflow, tmp_path)
    assert check.returncode == 0, check.stderr
    assert "2 variants on L4" in check.stdout
    assert replay.returncode == 0, replay.stderr
    assert (tmp_path / "temp" / "demo" / "demo-h200" / "report.html").exists()


def test_the_hosted_job_forgives_a_missing_checkpoint_and_not_a_wrong_spec(tmp_path: Path) -> None:
    workflow = written(tmp_path)
    workflow["jobs"]["smoke"]["steps"].pop()
    assert [done.returncode for done in run_steps(workflow, tmp_path)] == [0]
    write_spec(tmp_path, loda={"trials": 3})
    (wrong,) = run_steps(workflow, tmp_path)
    assert wrong.returncode != 0
    assert "did you mean 'load'?" in wrong.stderr


def test_a_hub_checkpoint_is_checked_strictly(tmp_path: Path) -> None:
    workflow = written(
        tmp_path,
        model={"target": "owner/name"},
        hardware={"price_usd_per_hour": 1.0, "tier": "mine"},
    )
    (check,) = [x["run"] for x in workflow["jobs"]["smoke"]["steps"] if "check" in x.get("run", "")]
    assert check == 'whet check "$SPEC" --device "$GPU"'
    assert workflow["env"]["GPU"] == "H100 SXM"


def test_an_existing_file_stays(repository: Path) -> None:
    path = repository / ".github" / "workflows" / "whet.yml"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"whet\.yml exists; move it away"):
        written(repository)
    assert path.read_text() == "mine"
