"""One checkpoint and what follows it: the installed engine is asked, and never in vain."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.stage import FakeEngine
from whet.core.errors import EngineStartError
from whet.core.protocols import Observer, Silent
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.spec import EngineSpec
from whet.flow.quantize.checkpoint import quantize_single
from whet.flow.quantize.options import QuantizeOptions, RecipeOptions


@dataclass
class Notes(Silent):
    """What an observer was told."""

    said: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr("whet.flow.serving.get_engine", lambda _name: fake)
    return fake


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A model, to be written into ``out`` beside it."""
    return write_tiny_llama(tmp_path / "model")


def quantized(model: Path, observer: Observer) -> None:
    options = QuantizeOptions(device="cpu", recipe=RecipeOptions(method="rtn"))
    quantize_single(str(model), model.with_name("out"), options, observer)


def test_the_engine_answers(asked: Path, engine: FakeEngine) -> None:
    notes = Notes()
    quantized(asked, notes)
    assert engine.started == ["out"]
    assert "vllm 0.32.0 on cpu: the log names no weight kernel" in notes.said[1]
    assert notes.said[2] == "it answered 't'"
    assert not asked.with_name("out.serve.log").exists()


def test_an_engine_that_fails_is_an_error_and_the_checkpoint_stays(
    asked: Path, engine: FakeEngine
) -> None:
    engine.refuses = {"out"}
    with pytest.raises(
        EngineStartError, match=r"out of memory; .*\. The checkpoint is not deleted"
    ):
        quantized(asked, Silent())
    assert (asked.with_name("out") / "model.safetensors").exists()
    engine.refuses = set()
    notes = Notes()
    quantized(asked, notes)
    assert notes.said[-1] == "it answered 't'", "the finished one is not made again"


def test_without_an_engine_nothing_is_tried(
    asked: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_variant: Variant, _spec: EngineSpec) -> ResolvedEngine:
        raise EngineStartError("vLLM is not installed; install it: pip install 'whet[gpu]'")

    monkeypatch.setattr(engine, "resolve", resolve)
    notes = Notes()
    quantized(asked, notes)
    assert notes.said[1].startswith("not served: vLLM is not installed")
    assert engine.started == []


def test_an_engine_that_says_it_cannot_is_not_started(
    asked: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "unsupported", lambda _resolved: "no kernel for a CPU")
    notes = Notes()
    quantized(asked, notes)
    assert notes.said[1] == "not served: no kernel for a CPU"
    assert engine.started == []


def test_a_speculation_head_is_not_served_alone(asked: Path, engine: FakeEngine) -> None:
    config = asked / "config.json"
    told = {**json.loads(config.read_text()), "architectures": ["LlamaForCausalLMEagle3"]}
    config.write_text(json.dumps(told))
    notes = Notes()
    quantized(asked, notes)
    assert engine.started == []
    assert "not served: a speculation head serves beside its target" in notes.said[1]
    assert f"draft: {asked.with_name('out')}" in notes.said[1]
