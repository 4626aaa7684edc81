"""The front end in Rust: requested, refused with what it lacks, and proved by its process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.engines.conftest import make_variant
from tests.levers.builders import resolved
from tests.levers.planted import SILENT, start
from tests.levers.recorded import log
from whet.core.records.engine import Scalar, Speculation
from whet.core.records.evidence import EngineFacts
from whet.engines.compatibility import Installed
from whet.engines.vllm.limits import limitation
from whet.levers import judge_start, labels, lever_env

CUDA = Installed(version="0.33.0", cpu_build=False)


def made(value: str, **args: Scalar) -> Any:
    one = resolved(scheme="16bit")
    env = tuple(lever_env({"frontend": value}).items())
    variant = make_variant(scheme="16bit", env=env, engine_args=tuple(args.items()))
    return replace(one, variant=variant, device="cuda")


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ({"api_server_count": 4}, "ignores api_server_count"),
        ({"renderer_num_workers": 4}, "ignores renderer_num_workers"),
    ],
)
def test_what_the_rust_front_end_lacks_is_refused_before_a_start(
    flag: dict[str, Scalar], word: str
) -> None:
    assert word in (limitation(made("rust", **flag), CUDA, gpu=True) or "")
    assert word not in (limitation(made("python", **flag), CUDA, gpu=True) or "")


def test_a_cpu_build_has_none() -> None:
    one = replace(made("rust"), device="cpu")
    found = limitation(one, Installed(version="0.32.0", cpu_build=True), gpu=False)
    assert "no Rust front end" in (found or "")


@pytest.mark.parametrize(
    ("value", "facts", "outcome"),
    [
        ("rust", log("h200_033_rust"), "proved"),
        ("rust", log("h200_033_default"), "contradicted"),
        ("python", log("h200_033_default"), "proved"),
        ("python", log("h200_033_rust"), "contradicted"),
        ("python", log("h100_front_ends"), "proved"),
        ("rust", EngineFacts(), "unproved"),
    ],
)
def test_the_process_that_answers_is_in_the_log(
    value: str, facts: EngineFacts, outcome: str
) -> None:
    found = {v.claim.kind: v.outcome for v in judge_start(made(value), facts, SILENT)}
    assert found["frontend"] == outcome


def test_nothing_is_claimed_where_nobody_chooses() -> None:
    found = judge_start(replace(made("rust"), variant=make_variant()), log("h200_033_rust"), SILENT)
    assert "frontend" not in {verdict.claim.kind for verdict in found}


def test_its_label_is_the_key_of_the_spec() -> None:
    found = labels(made("rust").variant)
    assert "frontend=rust" in found
    assert not any("VLLM_USE" in label for label in found)


HEAD = Speculation(method="eagle3", num_tokens=4, draft_path="/head")
SIZE = ("reserved 6.43 GiB", "reserved 12.67 GiB")


@pytest.mark.parametrize(
    ("kind", "changes", "outcome"),
    [
        ("settings", (), "proved"),
        ("settings", (SIZE,), "contradicted"),
        ("settings", (("num_spec_tokens=4", "num_spec_tokens=2"),), "contradicted"),
        ("settings", (("CUDAGraphMode.FULL:", "CUDAGraphMode.PIECEWISE:"),), "contradicted"),
        ("kv_cache", (), "proved"),
        ("kv_cache", (SIZE,), "contradicted"),
        ("kv_cache", (("kv_cache_dtype=fp8", "kv_cache_dtype=auto"),), "contradicted"),
    ],
)
def test_what_runs_behind_it_is_proved_by_the_log_alone(
    kind: str, changes: tuple[tuple[str, str], ...], outcome: str
) -> None:
    # The Rust front end answers neither /server_info nor vllm:cache_config_info.
    args: dict[str, Scalar] = {
        "kv_cache_dtype": "fp8",
        "kv_cache_memory_bytes": 6900000000,
        "compilation_config": '{"cudagraph_mode":"FULL"}',
    }
    verdict = start(kind, log("h100_033_rust_kv8", *changes), args=args, speculation=HEAD)
    assert verdict is not None
    assert verdict.outcome == outcome, verdict.observed
