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
    "engines": {"sglang": {"args": {"tp_size": 2}}, "other": {"name": "openai"}},
    "variants": {"fp16": {}, "q4": {"weights": "./q4", "engine": "sglang"}},
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
    assert spec.engine_of("q4").name == "sglang"
    assert spec.engine_of("q4").args == {"tp_size": 2}
    assert spec.engines["other"].name == "openai"
    assert [each.name for each in spec.engines_used] == ["vllm", "sglang"]


def test_an_engine_without_keys_is_that_engine() -> None:
    assert spec_of(engines={"sglang": None}).engine_of("q4").name == "sglang"


def test_an_unknown_engine_is_named_with_the_nearest() -> None:
    text = message(variants={"fp16": {"engine": "sglan"}})
    assert text.startswith("variant 'fp16' has the engine 'sglan', which is not among engines")
    assert "did you mean 'sglang'?" in text
    assert "(known: vllm, sglang, other)" in message(variants={"fp16": {"engine": "tgi"}})


def test_a_key_of_an_engine_is_checked_as_those_of_the_runs_engine() -> None:
    text = message(engines={"sglang": {"pythn": "/x"}})
    assert text == "unknown key 'pythn' in engines.sglang; did you mean 'python'?"


def test_secrets_of_every_engine_are_redacted() -> None:
    engines = {"sglang": {"env": {"HF_TOKEN": "hf_0123456789", "OMP_NUM_THREADS": "2"}}}
    shown = redacted_spec(spec_of(engines=engines).model_dump(mode="json"))
    env = shown["engines"]["sglang"]["env"]
    assert env == {"HF_TOKEN": "[redacted]", "OMP_NUM_THREADS": "2"}


def test_a_scheme_that_another_tool_writes_is_refused_with_its_name() -> None:
    assert message(recipes={"q4": {"scheme": "NVFP4"}}) == (
        "recipes.q4.scheme: whet does not write it; make it with llm-compressor and name the "
        "checkpoint in search.checkpoints or as a variant's weights (got 'NVFP4')"
    )
