"""Logs of engines that failed, in vLLM's own words, and the sentence that a person gets."""

from __future__ import annotations

import pytest

from whet.engines.failures import diagnose, last_words, plain_lines
from whet.engines.vllm import PROFILE

CORE = "(EngineCore pid=15553) ERROR 11-21 02:08:17 [core.py:1510] "
SERVER_DIES_TOO = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore_0': 1}\n"
)
TELLING = {
    "kv_too_small": "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine",
    "model_len": "  Value error, User-specified max_model_len (100000) is greater than the "
    "derived max_model_len (max_position_embeddings=512.0).",
    "busy_memory": "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less "
    "than desired GPU memory utilization (0.92, 72.8 GiB). Decrease GPU memory",
    "out_of_memory": "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. "
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.",
    "no_gpu": "RuntimeError: Failed to infer device type, please set the environment variable",
    "no_kernel": "ValueError: Failed to find a kernel that can implement the WNA16 linear layer.",
    "flag": "api_server.py: error: unrecognized arguments: --frobnicate 3",
    "tokenizer": "AssertionError: Target and draft model should have the same vocabulary size. "
    "Target model vocab_size=512. Draft model vocab_size=511.",
    "missing_module": "ModuleNotFoundError: No module named 'arctic_inference'",
}


@pytest.mark.parametrize("kind", TELLING)
def test_the_cause_is_found_below_the_servers_own_complaint(kind: str) -> None:
    found = diagnose(CORE + TELLING[kind] + "\n" + SERVER_DIES_TOO, PROFILE.failures.signs)
    assert found is not None
    assert found.kind == kind
    assert ";" in found.sentence  # what happened; what to do


def test_numbers_that_would_fit_are_passed_on() -> None:
    found = diagnose(CORE + TELLING["model_len"], PROFILE.failures.signs)
    assert found is not None
    assert "max_model_len 100000" in found.sentence
    assert "set it to 512 or less" in found.sentence


def test_a_cache_that_holds_no_request_is_told_in_gib() -> None:
    found = diagnose(
        f"{CORE}ValueError: To serve at least one request with the model's max seq len (8192), "
        "(4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.5 "
        "GiB). Try increasing `gpu_memory_utilization`",
        PROFILE.failures.signs,
    )
    assert found is not None
    assert "max_model_len 8192 needs 4.0 GiB of KV cache where 1.5 GiB are free" in found.sentence


def test_an_unknown_cause_is_quoted_innermost_first() -> None:
    log = (
        f"{CORE}Traceback (most recent call last):\n"
        f"{CORE}vllm.odd.StrangeError: the flux is inverted\n"
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
        f"{SERVER_DIES_TOO}"
    )
    found = diagnose(log, PROFILE.failures.signs)
    assert found is not None
    assert found.sentence.endswith("StrangeError: the flux is inverted")


def test_a_log_without_an_error_has_last_words_only() -> None:
    log = "INFO 11-21 02:08:17 [a.py:1] \x1b[32mloading\x1b[0m\n\n   \n"
    assert diagnose(log, PROFILE.failures.signs) is None
    assert last_words(log) == "loading"
    assert last_words(log + "x.py:1: FutureWarning: odd\n  wrapper = odd()\n") == "loading"
    assert last_words("plain\n") == "plain"
    assert last_words("") == "nothing"


def test_prefixes_are_cut_and_indentation_kept() -> None:
    assert plain_lines("(Worker pid=7) INFO 11-21 02:08:14 [x.py:1]   (model): A") == [
        "  (model): A"
    ]
