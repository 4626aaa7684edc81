"""What vLLM is told, and what it is not asked to do."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from tests.engines.conftest import make_variant
from whet.core.errors import EngineStartError, UsageError
from whet.core.records import ResolvedEngine, Speculation, Variant
from whet.core.spec import EngineSpec
from whet.engines import get_engine, vllm_flags, vllm_limits
from whet.engines.vllm import VllmEngine, find_installed, model_name
from whet.engines.vllm_limits import Installed, limitation, version_tuple

CPU = Installed(version="0.32.0", cpu_build=True, arctic=False)
CUDA = Installed(version="0.29.0", cpu_build=False, arctic=False)
DRAFT = Speculation(method="draft_model", num_tokens=4, draft_path="/checkpoints/draft")


@pytest.fixture(autouse=True)
def _no_real_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = vllm_flags.shipped_flags() | {"brand-new"}
    monkeypatch.setattr(vllm_flags, "installed_flags", lambda _python: flags)
    for name in ("VLLM_CPU_KVCACHE_SPACE", "VLLM_LOGGING_LEVEL"):
        monkeypatch.delenv(name, raising=False)


def resolve(variant: Variant, installed: Installed = CPU) -> ResolvedEngine:
    return VllmEngine(find=lambda _python: installed).resolve(variant, EngineSpec())


@pytest.mark.parametrize("on", [True, False])
def test_prefix_caching_is_always_said(on: bool) -> None:
    argv = resolve(make_variant(prefix_cache=on)).argv
    assert ("--enable-prefix-caching" in argv) is on
    assert ("--no-enable-prefix-caching" in argv) is not on


def test_the_line_for_a_person_says_what_the_process_is_told() -> None:
    resolved = resolve(make_variant(speculation=DRAFT, engine_args=(("max_model_len", 512),)))
    person = shlex.split(resolved.serve_line)
    assert person[:3] == ["vllm", "serve", "/checkpoints/awq"]
    assert "{port}" in resolved.argv
    assert person[person.index("--port") + 1] == "8000"
    after = resolved.argv.index("{port}") + 1
    assert tuple(person[person.index("8000") + 1 :]) == resolved.argv[after:]


def test_a_draft_and_its_options_become_one_json() -> None:
    draft = replace(DRAFT, options=(("use_heterogeneous_vocab", True),))
    argv = resolve(make_variant(speculation=draft)).argv
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "draft_model",
        "model": "/checkpoints/draft",
        "num_speculative_tokens": 4,
        "use_heterogeneous_vocab": True,
    }


def test_ngram_windows_are_explicit_and_may_be_set() -> None:
    ngram = Speculation(
        method="ngram", num_tokens=3, draft_path=None, options=(("prompt_lookup_min", 2),)
    )
    argv = resolve(make_variant(speculation=ngram)).argv
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert (config["prompt_lookup_min"], config["prompt_lookup_max"]) == (2, 5)


@pytest.mark.parametrize(
    ("arg", "words"),
    [
        (("max_model_len", 512), ["--max-model-len", "512"]),
        (("enforce_eager", True), ["--enforce-eager"]),
        (("enforce_eager", False), ["--no-enforce-eager"]),
        (("gpu_memory_utilization", 0.5), ["--gpu-memory-utilization", "0.5"]),
        (("brand_new", 1), ["--brand-new", "1"]),
    ],
)
def test_flags_in_the_engines_own_spelling(arg: tuple[str, object], words: list[str]) -> None:
    argv = resolve(make_variant(engine_args=(arg,))).argv
    assert list(argv[-len(words) :]) == words


@pytest.mark.parametrize(
    ("arg", "said"),
    [
        (("max_modle_len", 512), "did you mean"),
        (("enable_prefix_caching", True), "prefix_cache"),
        (("speculative-config", "{}"), "speculation"),
        (("api_key", "x"), "no place in a spec"),
        (("disable_log_stats", True), "counters"),
        (("headless", False), "leave it out instead of false"),
    ],
)
def test_flags_that_are_refused(arg: tuple[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve(make_variant(engine_args=(arg,)))


def test_the_environment_is_recorded_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FROM_OUTSIDE")
    monkeypatch.setenv("VLLM_API_KEY", "hush-hush-hush")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    env = dict(resolve(make_variant(env=(("VLLM_CPU_KVCACHE_SPACE", "2"),))).env)
    assert env["VLLM_ATTENTION_BACKEND"] == "FROM_OUTSIDE"
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert env["VLLM_LOGGING_LEVEL"] == "INFO"  # evidence reads the log
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_API_KEY" not in env


def test_a_hub_model_may_go_online_and_keeps_its_name() -> None:
    assert "HF_HUB_OFFLINE" not in dict(resolve(make_variant(model_path="org/name")).env)
    assert model_name("/cache/hub/models--org--name/snapshots/abc") == "org/name"
    assert model_name("org/name") == "org/name"
    assert model_name("/checkpoints/awq") == "awq"


def test_where_no_vllm_is_installed_the_mend_is_said() -> None:
    engine = VllmEngine(find=lambda _python: None)
    with pytest.raises(EngineStartError, match="pip install"):
        engine.version(EngineSpec())
    assert find_installed("/no/such/python") is None


def refused(
    installed: Installed = CPU, *, gpu: bool = False, args: object = (), **changes: object
) -> str | None:
    variant = make_variant(engine_args=args, **changes)
    device = "cpu" if installed.cpu_build else "cuda"
    resolved = replace(resolve(make_variant()), variant=variant, device=device)
    return limitation(resolved, installed, gpu=gpu)


def speculating(method: str, **options: str) -> Speculation:
    return Speculation(method=method, num_tokens=3, draft_path=None, options=tuple(options.items()))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (refused(replace(CPU, version="0.25.1")), "older than 0.26"),
        (refused(CUDA, gpu=False), "no NVIDIA GPU"),
        (refused(args=(("quantization", "fp8"),)), "FP8 at load"),
        (refused(scheme="W8A16"), "W8A16"),
        (refused(args=(("quantization", "int8_per_channel_weight_only"),)), "changes nothing"),
        (refused(args=(("attention_backend", "FLASH_ATTN"),)), "ignores"),
        (refused(speculation=speculating("draft_model")), "model.draft"),
        (refused(speculation=speculating("suffix")), "arctic-inference"),
        (refused(speculation=speculating("ngram_gpu")), "CUDA"),
        (refused(speculation=speculating("ngram", rejection_sample_method="synthetic")), "kills"),
        (refused(replace(CPU, version="0.33.0"), speculation=speculating("medusa")), "removed"),
    ],
)
def test_what_was_seen_to_fail_is_refused(found: str | None, said: str) -> None:
    assert found is not None
    assert said in found


@pytest.mark.parametrize(
    "found",
    [
        refused(),
        refused(speculation=DRAFT),
        refused(speculation=speculating("ngram")),
        refused(CUDA, gpu=True, scheme="W8A16"),
        refused(CUDA, gpu=True, args=(("quantization", "fp8"),)),
        refused(replace(CPU, version="dev")),
    ],
)
def test_what_runs_is_not_refused(found: str | None) -> None:
    assert found is None


def test_versions_with_suffixes() -> None:
    assert version_tuple("0.32.1+cpu") == (0, 32)
    assert version_tuple("dev") == (0, 0)


def test_an_unknown_engine_is_named_with_its_neighbour() -> None:
    with pytest.raises(UsageError, match="did you mean 'vllm'"):
        get_engine("vlm")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"scheme": "FP8", "recipe_schemes": ("FP8",)}, "FP8_DYNAMIC"),
        ({"args": (("kv_cache_dtype", "fp8"),)}, "FP8 KV cache"),
        ({"scheme": "mixed", "recipe_schemes": ("W4A16", "W8A16")}, "W8A16"),
    ],
)
def test_what_this_kind_of_cpu_cannot_serve_is_said_before_a_start(
    change: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_limits, "without_avx512", lambda: True)
    assert word in (refused(**change) or "")
    assert refused(CUDA, gpu=True, **change) is None
