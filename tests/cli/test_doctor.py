"""``whet doctor``: with and without an engine, as a table and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.stage import Said, Whet
from whet.core.provenance import Device
from whet.engines import get_profile
from whet.engines.compatibility import Installed
from whet.engines.machine import Machine
from whet.engines.vllm import PROFILE

CPU_BUILD = Installed(version="0.32.0", cpu_build=True)
EPYC = Device(kind="cpu", name="EPYC × 2", memory_bytes=2**34, count=1, driver=None)
H100 = Device(kind="cuda", name="H100", memory_bytes=80 * 2**30, count=2, driver="580.1")


class Place:
    """A machine and an engine of our choosing."""

    def __init__(self, whet: Whet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whet, self.patch = whet, monkeypatch
        self.be(EPYC, Machine(kind="cpu", vectors="avx2"), CPU_BUILD)

    def be(self, device: Device, machine: Machine, installed: Installed | None) -> None:
        installation = replace(PROFILE.installation, find=lambda _python: installed)
        profile = replace(PROFILE, installation=installation)
        for name, value in {
            "find_device": lambda: device,
            "find_machine": lambda _kind: machine,
            "get_profile": lambda name: profile if name == "vllm" else get_profile(name),
            "cpu_features": lambda: ("avx2",),
        }.items():
            self.patch.setattr(f"whet.flow.doctor.{name}", value)

    def levers(self) -> dict[str, Any]:
        said: Said = self.whet("doctor", "--json")
        assert said.code == 0
        return {item["lever"]: item for item in json.loads(said.out)["levers"]}


@pytest.fixture
def place(whet: Whet, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(whet, monkeypatch)


def test_the_summary_is_short_and_begins_with_what_works(place: Place) -> None:
    result = place.whet("doctor")
    assert (result.code, result.err) == (0, "")
    lines = result.out.strip().splitlines()
    assert len(lines) <= 12
    assert lines[1].startswith("works here: serving, weights (W4A16, W8A8")
    assert "EPYC × 2 (cpu-avx2)" in result.out
    assert "16 GiB" in result.out
    assert "vLLM 0.32.0, CPU build" in result.out
    levers = place.levers()
    blocked = [name for name, item in levers.items() if item["status"] == "not available here"]
    (line,) = [line for line in lines if line.startswith("not available here:")]
    plain = [name for name in blocked if " & " not in name and name.startswith("weights=")]
    assert len(plain) > 3
    assert all(name.partition("=")[2].rstrip("*") in line for name in plain)


@pytest.mark.parametrize("vectors", ["avx2", "avx512"])
def test_the_summary_names_no_lever_twice(place: Place, vectors: str) -> None:
    """FP8 with fixed input scales does not load on a CPU; with dynamic ones it is slow."""
    place.be(EPYC, Machine(kind="cpu", vectors=vectors), CPU_BUILD)
    lines = dict(
        line.split(": ", 1) for line in place.whet("doctor").out.splitlines() if ": " in line
    )
    groups = (re.search(r"weights \((.+?)\)", line) for line in lines.values())
    weights = [name for group in groups if group for name in group[1].split(", ")]
    assert len(weights) == len(set(weights))
    assert "FP8_DYNAMIC" in lines["slow"]
    assert " FP8," in lines["not available here"]


def test_the_whole_table_gives_the_reasons(place: Place) -> None:
    result = place.whet("doctor", "--all")
    table = result.out.split("╭", 1)[1]
    (row,) = [row for row in table.split("├") if "weights=W8A16" in row]
    text = " ".join(row.replace("│", " ").split())
    assert "not available here" in text
    assert "use W4A16 or W8A8" in text
    assert "observed with vllm 0.29.0 on cpu-avx512" in text


def test_an_engine_that_whet_does_not_start(place: Place) -> None:
    result = place.whet("doctor", "--engine", "openai")
    assert result.code == 0, result.err
    assert "attach a server with engine.url" in result.out


def test_a_python_that_is_not_there_is_an_error(place: Place) -> None:
    said = place.whet("doctor", "--python", "/nope").sentence(2)
    assert said == "--python /nope is not a program; name a Python, such as .venv/bin/python"


def test_an_unknown_engine_is_refused(place: Place) -> None:
    assert "unknown engine 'vlm'" in place.whet("doctor", "--engine", "vlm").sentence(2)


def test_what_a_lever_is_here(place: Place) -> None:
    found = place.levers()
    assert found["weights=W8A8"]["status"] == "available"
    assert found["weights=FP8*"]["status"] == "slow"
    assert found["attention_backend=flash_attn"]["status"] == "not known here"
    assert "arctic-inference" in found["speculation=suffix"]["why"]
    assert found["speculation=suffix"]["status"] == "not available here"
    place.be(
        EPYC,
        Machine(kind="cpu"),
        Installed(version="0.32.0", cpu_build=True, packages=("arctic-inference",)),
    )
    assert place.levers()["speculation=suffix"]["status"] == "available"


def test_a_gpu_is_another_machine(place: Place) -> None:
    installed = Installed(version="0.26.0", cpu_build=False)
    place.be(H100, Machine(kind="cuda", capability=(9, 0)), installed)
    assert "2 × H100, driver 580.1 (cuda=9.0)" in place.whet("doctor").out
    assert place.levers()["weights=W8A16"]["status"] == "available"


def test_without_an_engine_it_says_how_to_get_one(place: Place) -> None:
    place.be(EPYC, Machine(kind="cpu"), None)
    said = place.whet("doctor", "--all")
    assert said.code == 0
    assert "install it: pip install vllm" in said.out
    assert said.out.splitlines()[2].startswith("problem: vLLM is not installed")
    plain = json.loads(place.whet("doctor", "--json").out)
    assert (plain["engine"], plain["levers"]) == (None, [])
    assert "not installed" in plain["trouble"]


def test_a_build_that_does_not_fit_the_machine(place: Place) -> None:
    place.be(EPYC, Machine(kind="cpu"), Installed(version="0.32.0", cpu_build=False))
    assert "this machine shows no NVIDIA GPU" in place.whet("doctor").out
