"""The how-to's example is a lever: key, flag, label, refusal, claim and verdict from one class."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.levers import builders
from whet import levers
from whet.core.errors import UsageError
from whet.core.records.evidence import Declared, EngineFacts
from whet.core.spec import parse_spec
from whet.core.spec import variants as spec_variants
from whet.levers import claims, judge_start, labels, lever_args, problems

PAGE = Path(__file__).parents[2] / "docs" / "add-a-lever.md"
SPEC: dict[str, Any] = {
    "name": "m",
    "model": {"target": "org/target"},
    "hardware": {"price_usd_per_hour": 1.0},
    "variants": {"fp16": {}, "off": {"prefix_cache": True, "kv_offload": 8}},
}


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the page, with its line in the registry."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    lever = names["KvOffload"]()
    monkeypatch.setattr(levers, "LEVERS", (*levers.LEVERS, lever))
    monkeypatch.setattr(spec_variants, "_LEVER_KEYS", dict(spec_variants._LEVER_KEYS))
    spec_variants.register_lever_keys({lever.name: lever.spec_type})


def resolved(**args: Any) -> Any:
    made = builders.resolved(prefix_cache=True)
    return replace(made, variant=replace(made.variant, engine_args=tuple(args.items())))


@pytest.mark.usefixtures("_registered")
def test_one_class_adds_a_lever() -> None:
    item = parse_spec(SPEC, base=Path("/base")).variants["off"]
    assert lever_args(item.lever_values) == {"kv_offloading_size": 8}
    made = resolved(kv_offloading_size=8)
    assert "kv_offload=8GiB" in labels(made.variant)
    assert "kv_offload" in [claim.kind for claim in claims(made)]
    assert problems(made.variant) == ()
    assert "prefix_cache: true" in problems(replace(made.variant, prefix_cache=False))[0]


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize(("size", "word"), [("8", "proved"), ("0", "contradicted"), (None, "unp")])
def test_its_claim_is_judged(size: str | None, word: str) -> None:
    config = () if size is None else (("cache_config.kv_offloading_size", size),)
    declared = Declared(version=None, config=config, cache=(), models=())
    verdicts = judge_start(resolved(kv_offloading_size=8), EngineFacts(), declared)
    (verdict,) = [item for item in verdicts if item.claim.kind == "kv_offload"]
    assert verdict.outcome.startswith(word)


def test_without_its_line_the_key_is_unknown() -> None:
    with pytest.raises(UsageError, match=r"unknown key 'kv_offload' in variants\.off"):
        parse_spec(SPEC, base=Path("/base"))


@pytest.mark.usefixtures("_registered")
def test_a_wrong_value_is_refused_by_its_key() -> None:
    wrong = {**SPEC, "variants": {"fp16": {}, "off": {"kv_offload": "much"}}}
    with pytest.raises(UsageError, match=r"variants\.off: kv_offload: .*'much'"):
        parse_spec(wrong, base=Path("/base"))
