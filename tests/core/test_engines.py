"""Several engines in one spec: names, paths, secrets, and recipes of other tools."""

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
    "engines": {"llamacpp": {"args": {"threads": 2}}, "other": {"name": "openai"}},
    "variants": {"fp16": {}, "q4": {"weights": "./q4.gguf", "engine": "llamacpp"}},
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


@pytest.mark.parametrize(
    ("scheme", "tool"),
    [("Q4_K_M", "llama.cpp's llama-quantize"), ("NVFP4", "llm-compressor")],
)
def test_a_scheme_that_another_tool_writes_is_refused_with_its_name(scheme: str, tool: str) -> None:
    assert message(recipes={"q4": {"scheme": scheme}}) == (
        f"recipes.q4.scheme: whet does not write it; make it with {tool} and name the checkpoint "
        f"in search.checkpoints or as a variant's weights (got {scheme!r})"
    )
