"""The workflows of .github: GitHub's schema, pinned actions, permissions, commands that exist."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
SCHEMA = ROOT / "tests" / "flow" / "ci" / "github-workflow.json.xz"
NAMES = ["canary.yml", "ci.yml"]
_PINNED = re.compile(r"actions/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")


def read(name: str) -> dict[str, Any]:
    workflow: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return workflow | {"on": workflow.pop(True)}  # YAML 1.1 reads the key as true; GitHub does not


def commands(name: str) -> str:
    jobs = read(name)["jobs"].values()
    return "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)


def test_no_workflow_is_left_out() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_valid_pinned_and_may_only_read(name: str) -> None:
    schema = json.loads(lzma.decompress(SCHEMA.read_bytes()))
    workflow = read(name)
    workflow.pop(True, None)
    assert list(Draft7Validator(schema).iter_errors(workflow)) == []
    uses = re.findall(r"uses: (.+)", (FOLDER / name).read_text(encoding="utf-8"))
    assert [action for action in uses if not _PINNED.fullmatch(action)] == []
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        # Whoever may write runs nothing but gh.
        if "permissions" in job:
            assert job["permissions"] == {"issues": "write"}
            assert all("uses" not in step for step in job["steps"])


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_what_exists(name: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {*re.findall(r"\bmake ([a-z-]+)", commands(name))} <= {*targets}
    for path in re.findall(r"(?:^|\s)((?:scripts/|\.ci/)[\w.]+)", commands(name)):
        assert (ROOT / path).is_file(), path
        assert (ROOT / path).stat().st_mode & 0o100, path


def test_the_canary_runs_tests_of_both_servers() -> None:
    script = (ROOT / "scripts" / "canary.sh").read_text(encoding="utf-8")
    files = set(re.findall(r"tests/\S+\.py", script))
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*_e2e.py")
        if "pytest.mark.canary" in path.read_text(encoding="utf-8")
    }
    assert files == marked
