"""vLLM 0.33 on a GPU: what whet reads in recorded starts, and what it refuses before one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import make_variant
from tests.levers.builders import resolved
from tests.levers.planted import start
from tests.levers.recorded import log, pages
from whet.core.records.engine import ResolvedEngine, Speculation
from whet.core.records.evidence import EngineFacts
from whet.core.spec import EngineSpec
from whet.engines import machine
from whet.engines.compatibility import Installed, lookup
from whet.engines.machine import Machine
from whet.engines.vllm import VllmEngine
from whet.engines.vllm.limits import limitation
from whet.levers import lever_args


@pytest.mark.parametrize(("name", "frontend"), [("default", "python"), ("rust", "rust")])
def test_a_start_of_033_is_read_as_of_026(name: str, frontend: str) -> None:
    facts = log(f"h200_033_{name}")
    assert facts.version == "0.33.0"
    assert facts.frontend == frontend
    assert facts.attention_backend == "FLASH_ATTN"
    assert facts.kv_cache_tokens == 103_744
    assert facts.kv_memory_gib == 12.67
    assert facts.max_model_len == 2048
    assert facts.batched_tokens == 8192
    assert facts.prefix_cache_enabled
    assert facts.graphs_captured
    assert facts.v2_model_runner
    assert facts.weight_kernels == ()


def test_a_start_that_compiles_nothing_has_no_time_for_it() -> None:
    facts = log("h200_033_default", (" (compilation: 14.98 s)", ""))
    assert (facts.init_s, facts.compile_s) == (35.25, None)


def test_026_is_read_as_before() -> None:
    facts = log("h100_fp8_kv8")
    assert facts.kv_memory_gib == 72.54


def made(**changes: Any) -> ResolvedEngine:
    one = resolved(scheme="16bit")
    return replace(one, variant=make_variant(**{"scheme": "16bit"} | changes), device="cuda")


def refusal(machine: Machine, version: str = "0.33.0", **changes: Any) -> str:
    installed = Installed(version=version, cpu_build=machine.kind == "cpu")
    one = replace(made(**changes), device=machine.kind)
    return limitation(one, installed, gpu=True, machine=machine) or ""


def head(method: str = "eagle3", **options: Any) -> Speculation:
    return Speculation(
        method=method, num_tokens=4, draft_path="/head", options=tuple(options.items())
    )


HOPPER = Machine(kind="cuda", capability=(9, 0))
ADA = Machine(kind="cuda", capability=(8, 9))
CPU = Machine(kind="cpu", vectors="avx512")


@pytest.mark.parametrize(
    ("machine", "changes", "word"),
    [
        (ADA, {"scheme": "W4A8_FP8"}, "Hopper only"),
        (CPU, {"scheme": "W4A8_FP8"}, "Hopper only"),
        (HOPPER, {"scheme": "W4A8_FP8", "engine_args": (("dtype", "float16"),)}, "bfloat16"),
        (HOPPER, {"scheme": "W4A8_FP8-G64"}, "groups of 128"),
        (ADA, {"scheme": "W4A16", "engine_args": (("linear_backend", "machete"),)}, "Hopper only"),
        (CPU, {"scheme": "W4A16", "engine_args": (("linear_backend", "marlin"),)}, "leave kernels"),
        (CPU, {"speculation": head(rejection_sample_method="block")}, "token by token"),
        (HOPPER, {"engine_args": (("kv_cache_dtype", "octave_k3v4"),)}, "AMD"),
        (HOPPER, {"engine_args": (("kv_cache_dtype", "nvfp4"),)}, "flashinfer-python"),
        (
            HOPPER,
            {
                "engine_args": (
                    ("kv_cache_dtype", "fp8_per_token_head"),
                    ("attention_backend", "FLASH_ATTN"),
                )
            },
            "Triton",
        ),
        (
            HOPPER,
            {
                "speculation": head(draft_lm_head_quantization="fp8"),
                "env": (("VLLM_USE_V2_MODEL_RUNNER", "0"),),
            },
            "only the V2 model runner",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_a_start(
    machine: Machine, changes: dict[str, Any], word: str
) -> None:
    assert word in refusal(machine, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"scheme": "W4A8_FP8"},
        {"scheme": "W4A8_FP8", "engine_args": (("dtype", "bfloat16"),)},
        {"scheme": "W4A16", "engine_args": (("linear_backend", "machete"),)},
        {"engine_args": (("kv_cache_dtype", "fp8_per_token_head"),)},
        {"speculation": head(rejection_sample_method="block", draft_lm_head_quantization="fp8")},
    ],
)
def test_what_runs_on_hopper_is_not(changes: dict[str, Any]) -> None:
    assert refusal(HOPPER, **changes) == ""


@pytest.mark.parametrize("option", ["draft_lm_head_quantization", "rejection_sample_method"])
def test_what_came_with_033_is_refused_before_it(option: str) -> None:
    one = head(**{option: "fp8" if option.startswith("draft") else "fly"})
    assert "came with vLLM 0.33" in refusal(HOPPER, "0.32.0", speculation=one)
    assert refusal(HOPPER, speculation=one) == ""


@pytest.mark.parametrize(("version", "word"), [("0.26.0", "goes off"), ("0.33.0", "stays on")])
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_what_speculation_switches_off_depends_on_the_version(
    method: str, version: str, word: str
) -> None:
    rows = lookup(made(speculation=head(method)), HOPPER, version=version)
    assert any(word in row.says for row in rows)


@pytest.mark.parametrize(
    ("packages", "nvcc", "refused"),
    [((), False, True), (("cuda-bindings",), False, False), ((), True, False)],
)
def test_humming_needs_a_compiler(
    packages: tuple[str, ...],
    nvcc: bool,
    refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_TOOLKITS", tmp_path)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    if nvcc:
        (tmp_path / "cuda-13.0" / "bin").mkdir(parents=True)
        (tmp_path / "cuda-13.0" / "bin" / "nvcc").touch()
    installed = Installed(version="0.33.0", cpu_build=False, packages=packages)
    one = made(scheme="W4A16", engine_args=(("linear_backend", "humming"),))
    said = limitation(one, installed, gpu=True) or ""
    assert ("no CUDA compiler" in said) is refused


def test_the_rust_front_end_needs_the_command_that_starts_it() -> None:
    engine = VllmEngine(find=lambda _python: Installed(version="0.33.0", cpu_build=False))
    one = engine.resolve(make_variant(env=(("VLLM_USE_RUST_FRONTEND", "1"),)), EngineSpec())
    assert "vllm.entrypoints.cli.main" in one.argv
    assert "--disable-uvicorn-access-log" not in one.argv
    assert "VLLM_USE_RUST_FRONTEND=1" in one.serve_line


HEAD_FP8 = (
    "(EngineCore pid=5) INFO 11-23 03:21:44 [lm_head.py:147] Quantized a fp8 copy of the lm_head "
    "(32000 x 4096 per rank).\n"
)
V1 = (
    "(EngineCore pid=5) WARNING 11-23 03:21:41 [vllm.py:790] Model Runner V2 does not yet support "
    "heterogeneous-vocabulary draft models; using the V1 model runner instead.\n"
)
TO_V1 = ("Using V2 Model Runner", "Loading")


def resolved_as(**options: str) -> tuple[str, str]:
    config = {"method": "eagle3", "num_speculative_tokens": 4, **options}
    return ('"speculative_config": null', f'"speculative_config": {json.dumps(config)}')


@pytest.mark.parametrize(
    ("option", "facts", "shown", "outcome"),
    [
        ("draft_lm_head_quantization", log("h200_033_default", more=HEAD_FP8), "fp8", "proved"),
        ("draft_lm_head_quantization", log("h200_033_default"), "nvfp4", "contradicted"),
        ("rejection_sample_method", log("h200_033_default"), "block", "proved"),
        ("rejection_sample_method", log("h200_033_default"), "standard", "contradicted"),
        ("rejection_sample_method", log("h200_033_default", TO_V1, more=V1), "block", "contr"),
        ("rejection_sample_method", EngineFacts(), "block", "unproved"),
        ("draft_sample_method", log("h200_033_default"), "probabilistic", "proved"),
        ("draft_sample_method", log("h200_033_default"), "greedy", "contradicted"),
    ],
)
def test_options_of_speculation_are_proved_by_what_reads_them(
    option: str, facts: EngineFacts, shown: str, outcome: str
) -> None:
    wanted = {
        "draft_lm_head_quantization": "fp8",
        "rejection_sample_method": "block",
        "draft_sample_method": "probabilistic",
    }[option]
    verdict = start(
        "settings",
        facts,
        pages(resolved_as(**{option: shown})),
        speculation=head(**{option: wanted}),
    )
    assert verdict is not None
    assert verdict.outcome.startswith(outcome)


DECIDED = "Using fp8 data type to store kv cache"
POOL = ('kv_cache_memory_bytes="1073741824"', 'kv_cache_memory_bytes="None"')


def label(dtype: str) -> tuple[str, str]:
    return ('cache_dtype="auto"', f'cache_dtype="{dtype}"')


@pytest.mark.parametrize(
    ("wanted", "logged", "shown", "outcome", "word"),
    [
        ("fp8_per_token_head", "fp8_per_token_head", "fp8_per_token_head", "proved", "stored in"),
        ("fp8_per_token_head", "fp8", "fp8", "contradicted", "stored in fp8"),
        ("fp8", "fp8_per_token_head", "fp8_per_token_head", "contradicted", "per_token_head"),
        ("fp8", "fp8_e4m3", "fp8_e4m3", "proved", "stored in"),
        ("int8_per_token_head", "", "int8_per_token_head", "unproved", "no quantized cache"),
        ("int4_per_token_head", "int4_per_token_head", "int4_per_token_head", "contr", "1.00"),
    ],
)
def test_the_type_of_the_cache_is_exact(
    wanted: str, logged: str, shown: str, outcome: str, word: str
) -> None:
    said = DECIDED.replace("fp8", logged) if logged else "nothing"
    facts = log("h100_fp8_kv8", (DECIDED, said))
    verdict = start("kv_cache", facts, pages(label(shown), POOL), args={"kv_cache_dtype": wanted})
    assert verdict is not None
    assert verdict.outcome.startswith(outcome)
    assert word in verdict.observed


@pytest.mark.parametrize(
    ("logged", "outcome"), [("interactivity", "proved"), ("throughput", "contradicted")]
)
def test_a_performance_mode_is_in_the_log(logged: str, outcome: str) -> None:
    more = f"(EngineCore pid=5) INFO [vllm.py:1537] Performance mode set to '{logged}'.\n"
    args = lever_args({"performance_mode": "interactivity"})
    verdict = start("settings", log("h200_033_default", more=more), args=args)
    assert verdict is not None
    assert verdict.outcome == outcome
