"""A bundle has the settings of the spec and its levers, and none of the measurement."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import documents, engine_words, environment, plan, resolved
from whet.core.load import Load
from whet.core.run import Run
from whet.deploy.render import TARGETS, write_deployment
from whet.flow.deploy.bundle import deploy
from whet.flow.deploy.options import DeployOptions

REPOSITORY = Path(__file__).parents[3]
RUNS = {
    "one group on a GPU": "src/whet/demo/recorded/h200-7b-testbed.tar.xz",
    "groups of three": "results/h100-033-7b-testbed/b.tar.xz",
    "workers of Ray": "results/h200-layouts/one-gpu.tar.xz",
    "a CPU": "results/cpu-demo/run.tar.xz",
}
SHARE = ("gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override")
every_target = pytest.mark.parametrize("target", TARGETS)


def read(path: str, tmp_path: Path) -> Run:
    with tarfile.open(REPOSITORY / path) as tar:
        tar.extractall(tmp_path)
    return Run.read(tmp_path / "run")


def settings(folder: Path) -> str:
    """Every file but the records that a later run or a watch reads, without comments."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "watch"]
    lines = (line for path in files for line in path.read_text().splitlines())
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


@every_target
@pytest.mark.parametrize("run", RUNS)
def test_a_share_of_the_device_is_not_deployed(target: Any, run: str, tmp_path: Path) -> None:
    measured = read(RUNS[run], tmp_path)
    out = tmp_path / "out"
    done = deploy(measured, DeployOptions(target=target, output_dir=out))
    text = settings(out)
    assert not [name for name in SHARE if f"--{name}" in text]
    assert "access-log" not in text
    words = measured.engines[done.bundle.variant].argv
    left = {word.split()[0] for each in done.left_out for word in each.settings}
    assert {word for word in words if word[2:] in SHARE} <= left
    comments = (out / "serve.sh").read_text()
    assert all(f"#   {word}" in comments for word in left if word[2:] in SHARE)
    kept = ("--max-num-seqs", "--max-model-len")
    assert all(word in text for word in kept)


@every_target
def test_no_more_requests_run_than_are_recommended(target: Any, tmp_path: Path) -> None:
    run = read(RUNS["a CPU"], tmp_path)
    assert run.decision is not None
    assert run.decision.recommendation is not None
    assert run.decision.recommendation.load == Load.at(8)
    out = tmp_path / "out"
    done = deploy(run, DeployOptions(target=target, output_dir=out))
    text = settings(out)
    assert "--max-num-seqs" in text
    assert "64" not in text.split("--max-num-seqs", 1)[1].split("--", 1)[0]
    (script,) = (line for line in (out / "serve.sh").read_text().splitlines() if "exec" in line)
    assert script.count("--max-num-seqs") == script.count("--max-num-seqs 8") == 1
    note = "--max-num-seqs 8, measured with 64, holds 8 requests in flight: more wait."
    assert done.notes[0] == note
    commented = [path for path in out.glob("*.*") if f"# {note}" in path.read_text()]
    assert len(commented) >= 2, "the script and a manifest say it"


@pytest.mark.parametrize(
    ("args", "load", "words", "note"),
    [
        ({}, Load.at(8), ["8"], "8, measured with vLLM's default, holds 8 requests in flight"),
        ({}, Load.at(1), ["1"], "1, measured with vLLM's default, holds 1 request in flight"),
        ({"max_num_seqs": 4}, Load.at(8), ["4"], "4 is as measured, with 8 requests in flight."),
        ({"max_num_seqs": 8}, Load.at(8), ["8"], "8 is as measured, with 8 requests in flight."),
        (
            {"max_num_seqs": 64, "data_parallel_size": 4},
            Load.at(10),
            ["3"],
            "3 in each of 4 engines, measured with 64, holds 10 requests in flight: more wait.",
        ),
        (
            {"max_num_seqs": 64},
            Load.rate(2),
            ["64"],
            "is as measured: limit the 2 req/s in your gateway.",
        ),
        ({"max_num_seqs": 64}, None, ["64"], None),
    ],
)
def test_the_load_decides_how_many_requests_run(
    args: dict[str, int], load: Load | None, words: list[str], note: str | None
) -> None:
    planned = plan(replace(resolved(engine_args=tuple(args.items())), device="cuda"), load=load)
    for command in (planned.words, planned.local_argv):
        at = [i + 1 for i, word in enumerate(command) if word == "--max-num-seqs"]
        assert [command[i] for i in at] == words
    notes = [each for each in planned.notes if each.startswith("--max-num-seqs ")]
    assert [each.startswith(f"--max-num-seqs {note}") for each in notes] == [True] * bool(note)


def test_a_size_that_the_spec_gives_a_server_alone_is_deployed(tmp_path: Path) -> None:
    engine = replace(
        resolved(engine_args=(("gpu_memory_utilization", 0.8),)), device="cuda", env=()
    )
    for as_measured in (False, True):
        write_deployment(tmp_path, engine, as_measured=as_measured)
        assert "--gpu-memory-utilization" in settings(tmp_path)


@every_target
def test_settings_for_tests_are_never_deployed(target: Any) -> None:
    args = (
        ("load_format", "dummy"),
        ("num_gpu_blocks_override", 64),
        ("download_dir", "/scratch/hub"),
        ("max_num_seqs", 32),
    )
    planned = plan(replace(resolved(engine_args=args), device="cuda"))
    assert engine_words(target, documents(target, planned))[-4:-2] == ["--max-num-seqs", "32"]
    assert "dummy" not in " ".join(planned.local_argv)


@every_target
def test_what_belongs_to_the_measuring_machine_stays_there(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "VLLM_CACHE_ROOT": "/scratch/cache",
        "VLLM_PORT": "4711",
        "VLLM_HOST_IP": "10.0.0.7",
        "VLLM_NCCL_SO_PATH": "libnccl.so.2",
        "CUDA_VISIBLE_DEVICES": "3",
    }.items():
        monkeypatch.setenv(name, value)
    spec = (("TORCHINDUCTOR_CACHE_DIR", "/scratch/torch"), ("VLLM_USE_V2_MODEL_RUNNER", "0"))
    planned = plan(replace(resolved(env=spec), device="cuda"))
    named = environment(target, documents(target, planned))
    assert {name for name in named if name.startswith(("VLLM", "CUDA", "TORCH"))} <= {
        "VLLM_API_KEY",
        "VLLM_NO_USAGE_STATS",
        "VLLM_USE_V2_MODEL_RUNNER",
        "VLLM_ADDITIONAL_ARGS",
        "VLLM_CPU_KVCACHE_SPACE",
    }
    assert named["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert not {"VLLM_PORT", "CUDA_VISIBLE_DEVICES"} & dict(planned.local_env).keys()
    assert any("VLLM_PORT=4711" in each.settings for each in planned.left_out)


@every_target
def test_a_file_of_the_spec_is_mounted(target: Any) -> None:
    planned = plan(resolved(engine_args=(("chat_template", "/home/me/t.jinja"),)))
    words = engine_words(target, documents(target, planned))
    inside = words[words.index("--chat-template") + 1]
    assert inside == "/models/chat-template-t.jinja"
    (mount,) = (each for each in planned.mounts if each.container == inside)
    assert (mount.host, mount.variable) == ("/home/me/t.jinja", "WHET_CHAT_TEMPLATE")


def test_what_reproduces_a_measurement_is_as_it_was_measured(tmp_path: Path) -> None:
    args = (("gpu_memory_utilization", 0.1), ("kv_cache_memory_bytes", 10**9))
    write_deployment(tmp_path, replace(resolved(engine_args=args), device="cuda"), as_measured=True)
    words = ("--gpu-memory-utilization 0.1", "--disable-uvicorn-access-log")
    assert all(word in (tmp_path / "serve.sh").read_text() for word in words)


def test_the_record_of_a_bundle_names_the_deployed_command(tmp_path: Path) -> None:
    run = read(RUNS["one group on a GPU"], tmp_path)
    out = tmp_path / "out"
    deploy(run, DeployOptions(output_dir=out))
    line = json.loads((out / "bundle.json").read_text())["serve_line"]
    assert "--port 8000" in line
    assert "--gpu-memory-utilization" not in line
