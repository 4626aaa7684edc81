"""What vLLM is told, and what it is not asked to do."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.engines.conftest import make_variant
from whet.core.errors import EngineStartError, UsageError
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.spec import EngineSpec
from whet.engines import get_engine
from whet.engines import machine as compatibility_machine
from whet.engines.compatibility import Installed
from whet.engines.vllm import VllmEngine, find_installed, model_name
from whet.engines.vllm import flags as vllm_flags
from whet.engines.vllm.limits import limitation

CPU = Installed(version="0.32.0", cpu_build=True)
CUDA = Installed(version="0.29.0", cpu_build=False)
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


def test_the_serve_line_is_the_command_that_is_started() -> None:
    own = make_variant(speculation=DRAFT, env=(("VLLM_ODD", "a b"), ("DO_NOT_TRACK", "1")))
    resolved = resolve(own)
    words = shlex.split(resolved.serve_line)
    at = words.index(sys.executable)
    assert words[at:] == [word.replace("{port}", "8000") for word in resolved.argv]
    assert "VLLM_ODD=a b" in words[:at]
    assert "VLLM_CPU_KVCACHE_SPACE" in " ".join(words[:at])
    assert "VLLM_SERVER_DEV_MODE" not in resolved.serve_line


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


def test_the_serve_line_of_a_hub_model_starts_it_on_another_machine() -> None:
    """The measurement reads the folder in the cache, without the network."""
    hub = "/cache/hub/models--org--{}/snapshots/{}"
    path = hub.format("name", "abc")
    draft = replace(DRAFT, draft_path=hub.format("draft", "def"))
    loras = (("style", hub.format("style", "0123")), ("own", "/adapters/own"))
    resolved = resolve(make_variant(model_path=path, speculation=draft, loras=loras))
    assert path in resolved.argv
    assert dict(resolved.env)["HF_HUB_OFFLINE"] == "1"
    words = shlex.split(resolved.serve_line)
    at = words.index("--model")
    assert words[at : at + 4] == ["--model", "org/name", "--revision", "abc"]
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert (config["model"], config["revision"]) == ("org/draft", "def")
    assert {"style=org/style", "own=/adapters/own"} <= set(words)
    assert "HF_HUB_OFFLINE" not in resolved.serve_line
    assert "/cache" not in resolved.serve_line


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
    ("installed", "changes", "said"),
    [
        (replace(CPU, version="0.25.1"), {}, "older than 0.26"),
        (CUDA, {}, "no NVIDIA GPU"),
    ],
)
def test_what_is_not_installed_or_not_given_is_refused(
    installed: Installed, changes: dict[str, Any], said: str
) -> None:
    found = refused(installed, **changes) or ""
    assert said in found
    assert not found.startswith("not available here")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"args": (("quantization", "fp8"),)}, "FP8 at load"),
        ({"scheme": "W8A16"}, "W8A16"),
        ({"scheme": "mixed", "recipe_schemes": ("W4A16", "W8A16")}, "W8A16"),
        ({"args": (("quantization", "int8_per_channel_weight_only"),)}, "changes nothing"),
        ({"args": (("--attention-backend", "FLASH_ATTN"),)}, "ignores"),
        ({"speculation": speculating("suffix")}, "pip install arctic-inference"),
        ({"speculation": speculating("ngram_gpu")}, "use method ngram"),
        ({"speculation": speculating("ngram", rejection_sample_method="synthetic")}, "kills"),
    ],
)
def test_what_was_seen_to_fail_is_refused(changes: dict[str, Any], said: str) -> None:
    found = refused(**changes) or ""
    assert found.startswith("not available here: ")
    assert said in found


def test_what_a_version_removed_is_refused_from_that_version_on() -> None:
    medusa = {"speculation": speculating("medusa")}
    assert refused(CPU, **medusa) is None
    assert "removed medusa" in (refused(replace(CPU, version="0.33.0"), **medusa) or "")
    assert "removed medusa" in (refused(replace(CPU, version="dev"), **medusa) or "")


@pytest.mark.parametrize(
    ("installed", "changes"),
    [
        (CPU, {}),
        (CPU, {"speculation": DRAFT}),
        (CPU, {"speculation": speculating("ngram")}),
        (CPU, {"args": (("attention_backend", "CPU_ATTN"),)}),
        (replace(CPU, packages=("arctic-inference",)), {"speculation": speculating("suffix")}),
        (CUDA, {"gpu": True, "scheme": "W8A16"}),
        (CUDA, {"gpu": True, "args": (("quantization", "fp8"),)}),
        (replace(CPU, version="dev"), {}),
    ],
)
def test_what_runs_is_not_refused(installed: Installed, changes: dict[str, Any]) -> None:
    assert refused(installed, **changes) is None


def test_an_unknown_engine_is_named_with_its_neighbour() -> None:
    with pytest.raises(UsageError, match="did you mean 'vllm'"):
        get_engine("vlm")


@pytest.mark.parametrize(
    ("change", "word", "with_avx512"),
    [
        ({"scheme": "FP8", "recipe_schemes": ("FP8",)}, "FP8_DYNAMIC", "static_scaled_fp8_quant"),
        ({"args": (("kv_cache_dtype", "fp8"),)}, "FP8 KV cache", ""),
    ],
)
def test_what_this_kind_of_cpu_cannot_serve_is_said_before_a_start(
    change: dict[str, Any], word: str, with_avx512: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility_machine, "without_avx512", lambda: True)
    assert word in (refused(**change) or "")
    assert refused(CUDA, gpu=True, **change) is None
    monkeypatch.setattr(compatibility_machine, "without_avx512", lambda: False)
    monkeypatch.setattr(compatibility_machine, "cpu_features", lambda: ("avx2", "avx512f"))
    said = refused(**change)
    assert with_avx512 in (said or "")
    assert bool(said) is bool(with_avx512)


def test_proposals_by_load_go_to_the_engine_as_a_list() -> None:
    by_load = Speculation(
        method="eagle3",
        num_tokens=6,
        draft_path="/head",
        options=(("num_speculative_tokens_per_batch_size", "[[1,16,6],[17,256,2]]"),),
    )
    config = json.loads(
        value_of(resolve(make_variant(speculation=by_load)).argv, "--speculative-config")
    )
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 16, 6], [17, 256, 2]]
    assert config["num_speculative_tokens"] == 6


def test_several_api_servers_need_the_command_that_starts_them() -> None:
    variant = make_variant(engine_args=(("api_server_count", 4),))
    argv = resolve(variant, CUDA).argv
    at = argv.index("vllm.entrypoints.cli.main")
    assert argv[at + 1 : at + 3] == ("serve", variant.model_path)
    assert "--model" not in argv
    assert value_of(argv, "--api-server-count") == "4"
    one = make_variant(engine_args=(("api-server-count", 1),))
    assert "vllm.entrypoints.openai.api_server" in resolve(one, CUDA).argv


def test_a_cpu_build_has_one_api_server() -> None:
    resolved = resolve(make_variant(engine_args=(("api_server_count", 2),)))
    said = VllmEngine(find=lambda _python: CPU).unsupported(resolved)
    assert said is not None
    assert "one API server process" in said


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


ADAPTERS = (("support", "/a/support"), ("sales", "/a/sales"))


def test_adapters_are_loaded_at_the_start_with_room_for_all() -> None:
    argv = resolve(make_variant(loras=ADAPTERS, max_loras=2, lora_rank=8)).argv
    at = argv.index("--lora-modules")
    assert argv[at + 1 : at + 3] == ("support=/a/support", "sales=/a/sales")
    assert "--enable-lora" in argv
    flags = ("--max-loras", "--max-cpu-loras", "--max-lora-rank")
    assert [value_of(argv, flag) for flag in flags] == ["2", "2", "8"]
    assert not [word for word in resolve(make_variant()).argv if "lora" in word]


@pytest.mark.parametrize(
    ("fit", "beside", "known"), [(1, "1", "2"), (None, "2", "2"), (3, "3", "3")]
)
def test_adapters_that_do_not_fit_stay_in_the_hosts_memory(
    fit: int | None, beside: str, known: str
) -> None:
    """vLLM refuses ``--max-cpu-loras`` below ``--max-loras``."""
    argv = resolve(make_variant(loras=ADAPTERS, max_loras=fit)).argv
    assert (value_of(argv, "--max-loras"), value_of(argv, "--max-cpu-loras")) == (beside, known)


@pytest.mark.parametrize(
    ("rank", "allowed"),
    [(1, 1), (2, 8), (8, 8), (9, 16), (64, 64), (65, 128), (257, 320), (321, 512), (512, 512)],
)
def test_a_rank_is_rounded_up_to_what_vllm_takes(rank: int, allowed: int) -> None:
    """vLLM 0.32, ``MaxLoRARanks``: 1, 8, 16, 32, 64, 128, 256, 320, 512."""
    argv = resolve(make_variant(loras=ADAPTERS, lora_rank=rank)).argv
    assert value_of(argv, "--max-lora-rank") == str(allowed)


def test_a_rank_beyond_all_is_left_for_vllm_to_refuse() -> None:
    argv = resolve(make_variant(loras=ADAPTERS, lora_rank=1024)).argv
    assert value_of(argv, "--max-lora-rank") == "1024"


def test_an_adapters_folder_with_a_comma_is_told_in_json() -> None:
    argv = resolve(make_variant(loras=(("one", "/a,b/one"),))).argv
    assert json.loads(value_of(argv, "--lora-modules")) == {"name": "one", "path": "/a,b/one"}


def test_the_developer_mode_is_open_while_it_is_measured_whatever_surrounds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    assert dict(resolve(make_variant()).env)["VLLM_SERVER_DEV_MODE"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "model"),
    [
        ("eagle", "/heads/eagle", {"model": "/heads/eagle"}),
        ("eagle3", "org/head", {"model": "org/head"}),
        ("draft_model", "/run/checkpoints/awq", {"model": "/run/checkpoints/awq"}),
        ("suffix", None, {}),
        ("mtp", None, {}),
    ],
)
def test_what_proposes_is_named_where_it_is_a_model(
    method: str, path: str | None, model: dict[str, str]
) -> None:
    """A head, another model's folder, the target's own quantized copy, or nothing."""
    found = Speculation(method=method, num_tokens=3, draft_path=path)
    argv = resolve(make_variant(speculation=found)).argv
    assert json.loads(value_of(argv, "--speculative-config")) == {
        "method": method,
        "num_speculative_tokens": 3,
        **model,
    }
