"""Advice from the traffic that a spec really draws, told once for all variants that it concerns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, tiny_spec
from whet.core.provenance import Device
from whet.engines.machine import Machine
from whet.flow.run.check.advice import advice_of
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.check.facts import find_facts
from whet.flow.run.check.resolve import resolve

DEVICE = Device(kind="cpu", name="EPYC", memory_bytes=2**34, count=1, driver=None)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(kind="cpu", vectors="avx512")
    monkeypatch.setattr("whet.engines.compatibility.find_machine", lambda _kind: machine)


def told(
    folder: Path, variants: dict[str, Any], *, device: Device = DEVICE, **change: Any
) -> tuple[str, ...]:
    spec = tiny_spec(folder, variants=variants, **change)
    facts = find_facts(spec, folder, Checkpoints(folder, {}))
    return advice_of(facts, resolve(facts, folder, FakeEngine(), device))


@pytest.mark.parametrize(
    ("tier", "told_of"), [("2x H100 SXM", True), ("2x H200", False), ("ours", False)]
)
def test_the_name_of_another_gpu_is_a_slip(tmp_path: Path, tier: str, told_of: bool) -> None:
    hardware = {"tier": tier, "price_usd_per_hour": 2.0}
    h200 = Device(kind="cuda", name="NVIDIA H200", memory_bytes=2**37, count=2, driver=None)
    sentences = told(tmp_path, {"fp16": {}}, hardware=hardware, device=h200)
    expected = f"fp16: hardware.tier is {tier} and this is NVIDIA H200: correct it"
    assert [text.startswith(expected) for text in sentences] == [True] * told_of


@pytest.mark.parametrize(("price", "told_of"), [(2.95, True), (0.8, False)])
def test_a_planned_machine_does_not_take_the_price_of_another(
    tmp_path: Path, price: float, told_of: bool
) -> None:
    spec = tiny_spec(tmp_path, variants={"fp16": {}}, hardware={"price_usd_per_hour": price})
    facts = find_facts(spec, tmp_path, Checkpoints(tmp_path, {}))
    l4 = Device(kind="cuda", name="L4", memory_bytes=2**34, count=1, driver=None)
    machine = Machine(kind="cuda", capability=(8, 9))
    sentences = advice_of(facts, resolve(facts, tmp_path, FakeEngine(), l4), machine)
    expected = "fp16: hardware.price_usd_per_hour is 2.95, and L4 costs about 0."
    assert any(text.startswith(expected) for text in sentences) == told_of


def test_one_sentence_for_all_that_it_concerns(tmp_path: Path) -> None:
    load = {"concurrency": [64]}
    seqs = {"args": {"max_num_seqs": 32}}
    (sentence,) = told(tmp_path, {"fp16": seqs, "other": seqs}, load=load)
    assert sentence.startswith("every variant: max_num_seqs 32")
    (sentence,) = told(tmp_path, {"fp16": {}, "other": seqs}, load=load)
    assert sentence.startswith("other: max_num_seqs 32")
    assert sentence.endswith("set it to at least 64")
    enough = {"args": {"max_num_seqs": 32, "data_parallel_size": 2}}
    assert told(tmp_path, {"fp16": enough}, load=load) == ()


def test_what_is_slow_here_is_told(tmp_path: Path) -> None:
    recipes = {"fp8": {"scheme": "FP8_DYNAMIC"}}
    (sentence,) = told(tmp_path, {"fp16": {}, "f": {"weights": "fp8"}}, recipes=recipes)
    assert sentence.startswith("f: weights=FP8*: FP8 weights took 51 s")


def test_a_server_elsewhere_has_its_flags_already(tmp_path: Path) -> None:
    engine = {"name": "openai", "url": "http://127.0.0.1:8000"}
    variants = {"fp16": {"args": {"max_model_len": 4096}}}
    (sentence,) = told(tmp_path, variants, engine=engine)
    assert sentence.startswith("fp16: whet did not start this server and reads no log of it")
    names = sentence.rpartition("[")[2].partition("]")[0].split(", ")
    assert "weights" in names
    accepted = {"accept_unproved": names}
    assert told(tmp_path, variants, engine=engine, evidence=accepted) == ()


def test_suffix_speculation_on_generated_traffic(tmp_path: Path) -> None:
    def said(**options: Any) -> tuple[str, ...]:
        own = {"method": "suffix", "num_tokens": 8, "options": options}
        found = told(tmp_path, {"fp16": {}, "s": {"speculation": own}})
        return tuple(sentence for sentence in found if "suffix" in sentence)

    (sentence,) = said()
    assert sentence.startswith("s: suffix speculation drafts from earlier answers")
    assert said(suffix_decoding_max_cached_requests=0) == ()
