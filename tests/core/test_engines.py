"""Several engines in one spec: names, paths, secrets, and recipes that llama.cpp writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.core.errors import UsageError
from whet.core.spec import Spec, parse_spec, redacted_spec

BASE: dict[str, Any] = {
    "name": "m",
    "model": {"target": "./t"},
    "hardware": {"price_usd_per_hour": 1.0},
    "recipes": {"q4": {"scheme": "Q4_K_M"}},
    "engines": {"llamacpp": {"args": {"threads": 2}}, "other": {"name": "openai"}},
    "variants": {"fp16": {}, "q4": {"weights": "q4", "engine": "llamacpp"}},
}


def spec_of(**change: Any) -> Spec:
    return parse_spec({**BASE, **change}, base=Path("/base"))


def message(**change: Any) -> str:
    with pytest.raises(UsageError) as caught:
        spec_of(**change)
    return str(caught.value)


def test_a_variant_has_its_own_engine_and_the_others_the_runs() -> None:
    spec = spec_of()
    assert spec.engine_of("fp16").name == "vllm"
    assert spec.engine_of("q4").name == "llamacpp"
    assert spec.engine_of("q4").args == {"threads": 2}
    assert spec.engines["other"].name == "openai"
    assert [each.name for each in spec.engines_used] == ["vllm", "llamacpp"]


def test_an_engine_without_keys_is_that_engine() -> None:
    assert spec_of(engines={"llamacpp": None}).engine_of("q4").name == "llamacpp"


def test_an_unknown_engine_is_named_with_the_nearest() -> None:
    text = message(variants={"fp16": {"engine": "llamacp"}})
    assert text.startswith("variant 'fp16' has the engine 'llamacp', which is not among engines")
    assert "did you mean 'llamacpp'?" in text
    assert "(known: vllm, llamacpp, other)" in message(variants={"fp16": {"engine": "tgi"}})


def test_a_key_of_an_engine_is_checked_as_those_of_the_runs_engine() -> None:
    text = message(engines={"llamacpp": {"programm": "/x"}})
    assert text == "unknown key 'programm' in engines.llamacpp; did you mean 'program'?"


@pytest.mark.parametrize(
    ("given", "stored"),
    [("./bin/llama-server", "/base/bin/llama-server"), ("llama-server", "llama-server")],
)
def test_a_program_is_a_path_below_the_spec_or_a_name_on_the_path(given: str, stored: str) -> None:
    spec = spec_of(engines={"llamacpp": {"program": given}})
    assert str(spec.engines["llamacpp"].program) == stored


def test_secrets_of_every_engine_are_redacted() -> None:
    engines = {"llamacpp": {"env": {"HF_TOKEN": "hf_0123456789", "OMP_NUM_THREADS": "2"}}}
    shown = redacted_spec(spec_of(engines=engines).model_dump(mode="json"))
    env = shown["engines"]["llamacpp"]["env"]
    assert env == {"HF_TOKEN": "[redacted]", "OMP_NUM_THREADS": "2"}


def test_a_gguf_scheme_is_written_by_llama_cpp() -> None:
    recipe = spec_of().recipes["q4"]
    assert (recipe.writer, recipe.method) == ("llama.cpp", "k-quant")
    assert recipe.stored_scheme == "Q4_K_M"
    assert recipe.title == "k-quant Q4_K_M, by llama.cpp"


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"scheme": "Q4_K_M", "writer": "whet"}, "llama.cpp writes Q4_K_M, Q5_K_M, Q8_0"),
        ({"scheme": "W4A16", "writer": "llama.cpp"}, "leave writer out"),
        ({"scheme": "Q8_0", "kv_cache": "fp8"}, "no scales of keys and values"),
        ({"scheme": "Q8_0", "method": "awq"}, "Q8_0 is made by rtn, not by awq"),
    ],
)
def test_recipes_that_llama_cpp_does_not_make(recipe: dict[str, str], reason: str) -> None:
    assert reason in message(recipes={"q4": recipe})
