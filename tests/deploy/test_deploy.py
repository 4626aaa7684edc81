"""Rendered files: valid, pinned, without secrets, and without what only a CPU understands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.deploy.render import write_deployment

CONFIG = {"method": "draft_model", "model": "/checkpoints/draft", "num_speculative_tokens": 4}


def resolved(
    *, path: str = "/checkpoints/awq", device: str = "cpu", draft: str = "/checkpoints/draft"
) -> ResolvedEngine:
    config = json.dumps(CONFIG | {"model": draft})
    words = ("--enable-prefix-caching", "--speculative-config", config, "--max-model-len", "512")
    return ResolvedEngine(
        variant=Variant(
            name="awq+spec",
            weights="awq",
            scheme="W4A16",
            model_path=path,
            speculation=Speculation(method="draft_model", num_tokens=4, draft_path=draft),
            prefix_cache=True,
        ),
        engine="vllm",
        engine_version="0.32.0",
        device=device,
        served_model_name="awq",
        argv=(
            *("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", path),
            *("--served-model-name", "awq", "--host", "127.0.0.1", "--port", "{port}", *words),
            *("--block-size", "32", "--no-enforce-eager", "--dtype", "float32"),
            *("--tensor-parallel-size", "2"),
        ),
        env=(
            ("HF_TOKEN", "hf_abcdefghijklmnop"),
            ("OMP_NUM_THREADS", "2"),
            ("VLLM_CPU_KVCACHE_SPACE", "4"),
            ("VLLM_LOG_MODEL_INSPECTION", "1"),
            ("VLLM_NO_USAGE_STATS", "1"),
            ("VLLM_ODD", "a $HOME 'b'"),
        ),
        serve_line="python -m server --port 8000",
        ready_timeout_s=1.0,
    )


def compose(folder: Path, engine: ResolvedEngine, **options: str) -> dict[str, Any]:
    write_deployment(folder, engine, **options)
    data: dict[str, Any] = yaml.safe_load((folder / "compose.yaml").read_text())
    return data


def test_the_essentials_of_the_compose_specification(tmp_path: Path) -> None:
    data = compose(tmp_path, resolved())
    assert set(data) == {"name", "services", "volumes"}
    service = data["services"]["vllm"]
    assert service["image"] == "vllm/vllm-openai:v0.32.0"
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}
    assert service["restart"] == "unless-stopped"
    assert service["ipc"] == "host"
    assert service["healthcheck"]["test"][0] == "CMD"
    named = {v["source"] for v in service["volumes"] if v["type"] == "volume"}
    assert named == set(data["volumes"])
    assert all(isinstance(word, str) for word in service["command"])
    assert all(isinstance(value, str) for value in service["environment"].values())


def test_the_health_check_is_python_that_asks_for_a_token(tmp_path: Path) -> None:
    test = compose(tmp_path, resolved())["services"]["vllm"]["healthcheck"]["test"]
    compile(test[3], "healthcheck", "exec")
    assert '"model": "awq"' in test[3]


def test_local_checkpoints_are_mounted_read_only_and_named_inside(tmp_path: Path) -> None:
    service = compose(tmp_path, resolved())["services"]["vllm"]
    binds = {v["source"]: v for v in service["volumes"] if v["type"] == "bind"}
    assert binds["${WHET_MODEL_DIR:-/checkpoints/awq}"]["target"] == "/models/awq"
    assert all(bind["read_only"] for bind in binds.values())
    assert service["command"][0] == "/models/awq"
    config = json.loads(service["command"][service["command"].index("--speculative-config") + 1])
    assert config["model"] in {bind["target"] for bind in binds.values()}


def test_a_hub_snapshot_is_named_by_id_and_revision(tmp_path: Path) -> None:
    path = "/cache/hub/models--org--name/snapshots/abc123"
    service = compose(tmp_path, resolved(path=path))["services"]["vllm"]
    assert service["command"][:3] == ["org/name", "--revision", "abc123"]
    assert not any("org--name" in str(volume) for volume in service["volumes"])
    script = (tmp_path / "serve.sh").read_text()
    assert " --model org/name --revision abc123 " in script
    assert "/cache" not in script


def test_cpu_settings_are_left_out_and_told(tmp_path: Path) -> None:
    service = compose(tmp_path, resolved())["services"]["vllm"]
    text = (tmp_path / "compose.yaml").read_text()
    for word in ("--block-size", "--no-enforce-eager", "--dtype"):
        assert word not in service["command"]
        assert f"#   {word}" in text
    assert not {"VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS"} & set(service["environment"])
    assert "#   VLLM_CPU_KVCACHE_SPACE=4" in text


def test_on_a_gpu_every_flag_is_kept(tmp_path: Path) -> None:
    command = compose(tmp_path, resolved(device="cuda"))["services"]["vllm"]["command"]
    at = command.index("--block-size")
    assert command[at : at + 3] == ["--block-size", "32", "--no-enforce-eager"]
    assert "--port" not in command  # the container's own port stays 8000
    assert "{port}" not in command


def test_no_secret_and_no_unescaped_dollar(tmp_path: Path) -> None:
    service = compose(tmp_path, resolved())["services"]["vllm"]
    assert service["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"
    assert service["environment"]["VLLM_ODD"] == "a $$HOME 'b'"
    assert "hf_abc" not in "".join(p.read_text() for p in tmp_path.iterdir())


@pytest.mark.parametrize(("version", "tag"), [("0.32.1+cpu", "v0.32.1"), ("dev", "latest")])
def test_the_image_is_pinned_to_what_was_measured(tmp_path: Path, version: str, tag: str) -> None:
    from dataclasses import replace

    data = compose(tmp_path, replace(resolved(), engine_version=version))
    assert data["services"]["vllm"]["image"].endswith(f":{tag}")


def test_the_shell_script_starts_what_was_measured(tmp_path: Path) -> None:
    write_deployment(tmp_path, resolved())
    script = tmp_path / "serve.sh"
    assert os.access(script, os.X_OK)
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$VLLM_ODD" "$VLLM_CPU_KVCACHE_SPACE" "$@"\n')
    fake.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PORT": "8123", "WHET_PYTHON": str(fake)}
    done = subprocess.run([script], env=env, capture_output=True, text=True, check=True)
    argv = [word.replace("{port}", "8123") for word in resolved().argv[1:]]
    assert done.stdout.splitlines() == ["a $HOME 'b'", "4", *argv]
    assert "VLLM_LOG_MODEL_INSPECTION" not in script.read_text()


def test_an_attached_server_gets_a_note_only(tmp_path: Path) -> None:
    from dataclasses import replace

    write_deployment(tmp_path, replace(resolved(), url="http://host:1"))
    assert [path.name for path in tmp_path.iterdir()] == ["README.txt"]


def test_a_note_is_a_comment_that_leaves_both_files_whole(tmp_path: Path) -> None:
    note = "EXCLUDED from recommendation: its answers differ"
    assert compose(tmp_path, resolved(), note=note)["services"]
    assert (tmp_path / "compose.yaml").read_text().startswith(f"# {note}\n")
    assert (tmp_path / "serve.sh").read_text().splitlines()[:2] == [
        "#!/bin/sh",
        f"# {note}",
    ]
