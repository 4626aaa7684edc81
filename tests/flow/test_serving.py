"""A checkpoint served outside a run: which engine, with what settings, and what refuses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.stage import FakeEngine
from whet.core.errors import EngineStartError
from whet.core.provenance import Device
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.spec import EngineSpec
from whet.flow import serving

CPU = Device(kind="cpu", name="EPYC", memory_bytes=2**34, count=1, driver=None)


def test_a_trial_has_what_its_engine_starts_sooner_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_device", lambda: CPU)
    monkeypatch.setattr("whet.engines.vllm.engine.cpu_dtype", lambda: "float32")

    def args(spec: EngineSpec) -> dict[str, object]:
        variant = serving.plain_variant(Path("/m"), spec, max_model_len=64)
        return dict(variant.engine_args)

    assert args(EngineSpec()) == {"max_model_len": 64, "enforce_eager": True, "dtype": "float32"}
    own = EngineSpec(args={"dtype": "bfloat16"})
    assert args(own)["dtype"] == "bfloat16", "the spec's own counts"
    for name in ("sglang", "openai"):
        flags = {"max_model_len": 64}
        assert args(EngineSpec(name=name)).items() >= flags.items()
    assert args(EngineSpec(name="sglang")) == {"max_model_len": 64}, "it has no such flags"


def test_a_refusal_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, spec = FakeEngine(), EngineSpec()
    monkeypatch.setattr(serving, "get_engine", lambda _name: fake)
    variant = serving.plain_variant(Path("/m"), spec, max_model_len=64)
    assert serving.resolve_alone(replace(variant, name="it"), spec)[1].variant.name == "it"

    def missing(_variant: Variant, _spec: EngineSpec) -> ResolvedEngine:
        raise EngineStartError("vLLM is not installed; install it")

    monkeypatch.setattr(fake, "unsupported", lambda _resolved: "no kernel here")
    with pytest.raises(EngineStartError, match="no kernel here"):
        serving.resolve_alone(variant, spec)
    monkeypatch.setattr(fake, "resolve", missing)
    with pytest.raises(EngineStartError, match="not installed"):
        serving.resolve_alone(variant, spec)
