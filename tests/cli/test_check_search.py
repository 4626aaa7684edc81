"""``whet check`` of a spec with a search: its time, its moves, and a log that is too small."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoint.test_heads import write_head
from tests.checkpoint_factory import write_tiny_llama
from tests.cli.stage import Whet, write_spec
from tests.cli.test_init_from_log import write_log
from whet.cli.run.check import moves_document, moves_section
from whet.core.errors import UsageError
from whet.report.document import Paragraph

DEVICE = ("--device", "H100 SXM")


@dataclass(frozen=True)
class Move:
    name: str


@dataclass(frozen=True)
class Option:
    move: Move
    value: object
    reason: str


OPTIONS = (
    Option(Move("kv8"), None, "the KV cache of 64 requests takes 2% of the memory"),
    Option(Move("fp8"), {"weights": "fp8"}, "this card computes in FP8"),
    Option(Move("head"), {"speculation": {}}, "o/head drafts"),
)


def write_log_spec(folder: Path, requests: int = 400, **change: object) -> None:
    write_log(folder / "log.jsonl", requests, timed=False)
    write_spec(
        folder,
        workload={},
        traffic={"log": "./log.jsonl"},
        model={"target": "./target"},
        **{"search": {"time": "20m"}, "load": {"concurrency": [1, 4]}, **change},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "target")
    return tmp_path


def test_moves_are_in_order_and_those_that_do_not_apply_come_last() -> None:
    section = moves_section(OPTIONS)
    lines = [node.text.strip() for node in section.nodes if isinstance(node, Paragraph)]
    assert lines == [
        "1. fp8: this card computes in FP8",
        "2. head: o/head drafts",
        "not kv8: the KV cache of 64 requests takes 2% of the memory",
    ]
    assert moves_document(OPTIONS)[0] == {
        "move": "kv8",
        "applies": False,
        "reason": "the KV cache of 64 requests takes 2% of the memory",
    }


def test_the_time_of_a_search_is_its_effort(whet: Whet, folder: Path) -> None:
    write_log_spec(folder)
    said = whet("check", *DEVICE)
    assert said.code == 0, said.err
    assert "search: 20 min 00 s for everything" in said.out
    assert "server start" not in said.out
    document = json.loads(whet("check", "--json", *DEVICE).out)
    assert document["effort"] == {"seconds": 1200}
    assert "moves" in document


def test_a_head_of_another_model_is_refused_before_anything_starts(
    whet: Whet, folder: Path
) -> None:
    write_head(folder / "head", hidden_size=512)
    write_log_spec(folder, search={"heads": ["./head"]}, hardware={"price_usd_per_hour": 3.0})
    said = whet("check", *DEVICE).sentence(UsageError.exit_code)
    assert said.startswith("search.heads: ")
    assert said.endswith(
        "head was made for another model: it reads hidden states of 512 values and the target's "
        "have 128; give a head that was trained for this target, or leave it out"
    )


def test_a_log_that_is_too_small_for_two_parts_is_refused(whet: Whet, folder: Path) -> None:
    write_log_spec(folder, 40)
    said = whet("check", *DEVICE).sentence(UsageError.exit_code)
    assert "the confirmation part of" in said
    assert "give a log of 80 requests or more" in said
