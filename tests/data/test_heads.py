"""The table of published heads."""

from __future__ import annotations

import re

from whet.core.spec import SpeculationSpec
from whet.data.heads import all_heads, published_heads

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def test_every_row_is_what_a_spec_takes() -> None:
    rows = all_heads()
    assert len(rows) == len({(row.base, row.head, row.method) for row in rows}) > 100
    for row in rows:
        assert _HUB_ID.fullmatch(row.base.removesuffix("*"))
        assert _HUB_ID.fullmatch(row.head) or (row.head, row.method) == ("", "mtp")
        made = SpeculationSpec.model_validate(
            {
                "method": row.method,
                "num_tokens": row.num_tokens or 1,
                "draft": row.head or None,
                "options": dict.fromkeys(row.options, True),
            }
        )
        assert made.method == row.method


def test_a_model_has_its_own_heads_and_those_of_its_family() -> None:
    rows = list(published_heads("qwen/Qwen3-14B"))
    heads = {row.head: (row.method, row.options, row.num_tokens) for row in rows}
    assert heads == {
        "RedHatAI/Qwen3-14B-speculator.eagle3": ("eagle3", (), None),
        "AngelSlim/Qwen3-14B_eagle3": ("eagle3", (), None),
        "amd/PARD-Qwen3-0.6B": ("draft_model", ("parallel_drafting",), 12),
    }
    assert list(published_heads("Qwen/Qwen3")) == []


def test_methods_that_vllm_no_longer_has_are_left_out() -> None:
    methods = {row.method for row in all_heads()}
    assert methods == {"eagle", "eagle3", "dflash", "dspark", "mtp", "draft_model"}
