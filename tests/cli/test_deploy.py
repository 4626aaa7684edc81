"""``whet deploy`` at a terminal: what it prints and its exit codes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from whet.core.errors import MeasurementError, StorageError, UsageError

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return tmp_path / "run"


def test_a_folder_that_is_no_run(whet: Whet, tmp_path: Path) -> None:
    assert "holds no run" in whet("deploy", tmp_path).sentence(StorageError.exit_code)


def test_a_target_that_is_not_known(whet: Whet, root: Path) -> None:
    said = whet("deploy", root, "--target", "swarm").sentence(UsageError.exit_code)
    assert "'swarm'" in said
    assert "compose" in said


def test_an_unfinished_run_and_a_wrong_option(whet: Whet, root: Path) -> None:
    assert "--scrape-interval" in whet("deploy", root, "--scrape-interval", "0").sentence(2)
    (root / "decision.json").unlink()
    assert "no decision" in whet("deploy", root).sentence(MeasurementError.exit_code)


def test_it_prints_how_to_start_and_how_to_go_back(whet: Whet, root: Path) -> None:
    left_out = [
        "  --max-num-seqs 8, measured with 64, holds 8 requests in flight: more wait.",
        "  Measured on a CPU: the container is for a GPU, where latencies and costs differ, so "
        "measure again there.",
        "  Left out: only the measurement needs it, whose evidence is in the log: "
        "--disable-uvicorn-access-log",
        "  Left out: measured on a CPU, these settings mean nothing to a GPU: --enforce-eager, "
        "--block-size 32, --dtype auto, VLLM_CPU_KVCACHE_SPACE=1, VLLM_CPU_NUM_OF_RESERVED_CPU=0",
    ]
    first = whet("deploy", root)
    assert (first.code, first.err) == (0, "")
    where, limit, *rest = first.out.splitlines()
    assert where == "deployment: draft+cache at concurrency 8, vllm/vllm-openai:v0.32.0"
    assert limit.startswith("  Limit: greedy requests only")
    assert rest == [
        *left_out,
        "  Start      sh deployment/serve.sh",
        "  Watch      whet watch deployment --url http://127.0.0.1:8000",
        "  On a GPU   cp deployment/.env.example deployment/.env  # then set the keys in it",
        "             docker compose -f deployment/compose.yaml up -d",
        "             docker compose -f deployment/compose.yaml --profile monitoring up -d",
        "  Roll back  the next whet deploy keeps this bundle in previous/",
    ]
    Path("deployment/.env").write_text("VLLM_API_KEY=x\n")
    again = whet("deploy", root, "--target", "k8s", "--namespace", "llm", "--image-tag", "v0.32.1")
    where, limit, *rest = again.out.splitlines()
    assert where == "deployment: draft+cache at concurrency 8, vllm/vllm-openai:v0.32.1"
    assert rest == [
        *left_out,
        "  Start      sh deployment/serve.sh",
        "  Watch      whet watch deployment --url http://127.0.0.1:8000"
        "  # after kubectl port-forward pod/NAME 8000 -n llm",
        "  On a GPU   kubectl create secret generic vllm-target-keys "
        "--from-env-file=deployment/.env -n llm --dry-run=client -o yaml | kubectl apply -f -",
        "             kubectl apply -k deployment",
        "  Roll back  sh deployment/previous/serve.sh",
    ]


def test_it_says_that_answers_are_not_watched(whet: Whet, root: Path) -> None:
    (root / "golden" / "draft+cache.json").unlink()
    said = whet("deploy", root).out
    assert "The run stored no golden probes (golden/ has none; a new run takes" in said


def test_json_has_the_record_and_the_commands(whet: Whet, root: Path) -> None:
    whet("deploy", root, "-q")
    document = json.loads(whet("deploy", root, "--variant", "fp16", "--json").out)
    assert document["bundle"]["variant"] == "fp16"
    assert document["previous"]["variant"] == "draft+cache"
    assert document["directory"].endswith("/deployment")
    assert document["notes"][0].startswith("--max-num-seqs ")
    steps = document["steps"]
    assert steps["Start"] == ["sh deployment/serve.sh"]
    assert set(steps) == {"Start", "Watch", "On a GPU", "Roll back"}
