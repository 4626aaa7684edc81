"""The how-to's example is a lever: key, flag, label, refusal, claim and verdict from one class."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.levers import builders
from whet.core.errors import UsageError
from whet.core.records.load import Counters
from whet.core.spec import parse_spec
from whet.levers import claims, judge_cell, kv_offload, labels, lever_args, problems

PAGE = Path(__file__).parents[2] / "docs" / "add-a-lever.md"
SPEC: dict[str, Any] = {
    "name": "m",
    "model": {"target": "org/target"},
    "hardware": {"price_usd_per_hour": 1.0},
    "variants": {"fp16": {}, "off": {"prefix_cache": True, "kv_offload": 8}},
}
GIB = float(2**30)


def resolved(**args: Any) -> Any:
    made = builders.resolved(prefix_cache=True)
    return replace(made, variant=replace(made.variant, engine_args=tuple(args.items())))


def outcome(before: dict[str, float], after: dict[str, float]) -> str:
    """The verdict on the loaded blocks, of counters around one trial."""
    names = {
        "loaded": "vllm:kv_offload_load_bytes_total",
        "stored": "vllm:kv_offload_store_bytes_total",
        "generated": "vllm:generation_tokens_total",
    }
    scrapes = [
        Counters(taken_ns=0, values=tuple((names[key], value) for key, value in each.items()))
        for each in ({"generated": 0, **before}, {"generated": 40, **after})
    ]
    verdicts = judge_cell(
        resolved(kv_offloading_size=8), [builders.trial(*scrapes)], builders.workload()
    )
    (verdict,) = [item for item in verdicts if item.claim.kind == "kv_offload"]
    return verdict.outcome


def test_the_page_shows_a_lever_as_it_is() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example == Path(kv_offload.__file__).read_text(encoding="utf-8")


def test_one_class_adds_a_lever() -> None:
    item = parse_spec(SPEC, base=Path("/base")).variants["off"]
    assert lever_args(item.lever_values) == {"kv_offloading_size": 8}
    made = resolved(kv_offloading_size=8)
    assert "kv_offloading_size=8" in labels(made.variant)
    assert [claim.kind for claim in claims(made)].count("kv_offload") == 1
    assert "kv_offload" not in [claim.kind for claim in claims(resolved())]
    assert problems(made.variant) == ()
    assert "prefix_cache: true" in problems(replace(made.variant, prefix_cache=False))[0]


@pytest.mark.parametrize("size", [0, -1, "much"])
def test_a_size_that_cannot_work_is_refused(size: Any) -> None:
    assert "greater than 0 GiB" in problems(resolved(kv_offloading_size=size).variant)[0]


def test_only_bytes_that_are_loaded_back_prove_it() -> None:
    assert outcome({"loaded": 0, "stored": 0}, {"loaded": GIB, "stored": 2 * GIB}) == "proved"
    assert outcome({"loaded": 0, "stored": 0}, {"loaded": 0, "stored": 2 * GIB}) == "unproved"
    assert outcome({"loaded": 5, "stored": 5}, {"loaded": 1, "stored": 9}) == "unproved"
    assert outcome({}, {}) == "contradicted"


def test_a_wrong_value_is_refused_by_its_key() -> None:
    wrong = {**SPEC, "variants": {"fp16": {}, "off": {"kv_offload": "much"}}}
    with pytest.raises(UsageError, match=r"variants\.off: kv_offload: .*'much'"):
        parse_spec(wrong, base=Path("/base"))
