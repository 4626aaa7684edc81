"""A deployment of a variant with adapters, or with its own quantized copy as a draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.records import variant
from whet.core.records.engine import ResolvedEngine, Speculation
from whet.core.spec import EngineSpec
from whet.deploy.render import write_deployment
from whet.engines.compatibility import Installed
from whet.engines.vllm import VllmEngine
from whet.engines.vllm import flags as vllm_flags

HUB = "/cache/hub/models--org--style/snapshots/abc123"


@pytest.fixture(autouse=True)
def _flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_flags, "installed_flags", lambda _python: vllm_flags.shipped_flags())


def resolved(**change: Any) -> ResolvedEngine:
    """As vLLM's own adapter resolves it, so that the command is the real one."""
    installed = Installed(version="0.32.0", cpu_build=True)
    made = variant(**{"scheme": "BF16", "model_path": "/models-here/target", **change})
    return VllmEngine(find=lambda _python: installed).resolve(made, EngineSpec())


def written(folder: Path, engine: ResolvedEngine) -> tuple[dict[str, Any], str]:
    """The service of ``compose.yaml``, and ``serve.sh``."""
    write_deployment(folder, engine)
    service: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    return service["vllm"], (folder / "serve.sh").read_text()


def after(command: list[str], flag: str) -> list[str]:
    """The words of a flag."""
    at = command.index(flag) + 1
    end = next((i for i in range(at, len(command)) if command[i].startswith("--")), len(command))
    return command[at:end]


def binds(service: dict[str, Any]) -> dict[str, str]:
    """Container folder by host folder."""
    return {v["source"]: v["target"] for v in service["volumes"] if v["type"] == "bind"}


def test_adapters_are_mounted_and_named_by_where_they_are_inside(tmp_path: Path) -> None:
    loras = (("support", "/adapters/support"), ("sales", "/adapters/sales"))
    service, script = written(tmp_path, resolved(loras=loras, max_loras=1, lora_rank=8))
    assert binds(service) == {
        "${WHET_MODEL_DIR:-/models-here/target}": "/models/target",
        "${WHET_LORA_1_DIR:-/adapters/support}": "/models/lora-1-support",
        "${WHET_LORA_2_DIR:-/adapters/sales}": "/models/lora-2-sales",
    }
    command = service["command"]
    assert after(command, "--lora-modules") == [
        "support=/models/lora-1-support",
        "sales=/models/lora-2-sales",
    ]
    assert [after(command, flag) for flag in ("--max-loras", "--max-cpu-loras")] == [["1"], ["2"]]
    assert "--lora-modules support=/adapters/support sales=/adapters/sales" in script


def test_two_adapters_in_folders_of_one_name_stay_apart(tmp_path: Path) -> None:
    loras = (("one", "/one/adapter"), ("two", "/two/adapter"))
    service, _ = written(tmp_path, resolved(loras=loras))
    assert len(set(binds(service).values())) == 3


def test_a_folder_that_begins_like_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """Here a container's path is also the beginning of a host's."""
    loras = (("one", "/models/target"), ("two", "/models/target-two"))
    service, script = written(tmp_path, resolved(loras=loras))
    assert after(service["command"], "--lora-modules") == [
        "one=/models/lora-1-target",
        "two=/models/lora-2-target-two",
    ]
    assert "--model /models-here/target" in script
    assert "one=/models/target two=/models/target-two" in script


def test_an_adapter_of_the_hub_is_named_by_its_id_and_its_revision_is_told(tmp_path: Path) -> None:
    service, script = written(tmp_path, resolved(loras=(("style", HUB),)))
    assert after(service["command"], "--lora-modules") == ["style=org/style"]
    assert list(binds(service).values()) == ["/models/target"]
    compose = (tmp_path / "compose.yaml").read_text()
    assert "# measured with the adapter style at revision abc123 of org/style" in compose
    assert "# measured with the adapter style at revision abc123 of org/style" in script
    assert "style=org/style" in script


def test_a_folder_with_a_comma_is_told_in_json(tmp_path: Path) -> None:
    service, script = written(tmp_path, resolved(loras=(("one", "/a,b/c,d"),)))
    (word,) = after(service["command"], "--lora-modules")
    assert json.loads(word) == {"name": "one", "path": "/models/lora-1-c,d"}
    assert '{"name": "one", "path": "/a,b/c,d"}' in script


def test_the_targets_own_copy_drafts_from_a_mount(tmp_path: Path) -> None:
    draft = "/run/checkpoints/awq"
    speculation = Speculation(method="draft_model", num_tokens=4, draft_path=draft)
    service, script = written(tmp_path, resolved(speculation=speculation))
    assert binds(service)[f"${{WHET_DRAFT_DIR:-{draft}}}"] == "/models/draft-awq"
    (config,) = after(service["command"], "--speculative-config")
    assert json.loads(config)["model"] == "/models/draft-awq"
    assert f'"model": "{draft}"' in script


def test_a_copy_that_drafts_for_itself_is_mounted_as_both(tmp_path: Path) -> None:
    path = "/run/checkpoints/awq"
    speculation = Speculation(method="draft_model", num_tokens=4, draft_path=path)
    service, _ = written(tmp_path, resolved(model_path=path, speculation=speculation))
    assert set(binds(service).values()) == {"/models/awq", "/models/draft-awq"}


def test_the_developer_mode_of_the_measurement_is_not_deployed(tmp_path: Path) -> None:
    engine = resolved()
    assert dict(engine.env)["VLLM_SERVER_DEV_MODE"] == "1"
    service, script = written(tmp_path, engine)
    assert "VLLM_SERVER_DEV_MODE" not in service["environment"]
    assert "VLLM_SERVER_DEV_MODE" not in script
    assert "VLLM_SERVER_DEV_MODE" not in (tmp_path / "compose.yaml").read_text()
