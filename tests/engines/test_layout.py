"""Which GPUs each server of a layout sees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.builders import resolved
from whet.core.records.engine import Layout
from whet.engines.vllm.layout import _devices


@pytest.mark.parametrize(
    ("layout", "seen"),
    [
        (Layout(decode=2), ["4,5", "6,7"]),
        (Layout(decode=1, prefill=1, connector="NixlConnector"), ["4,5,6,7", "6,7,4,5"]),
    ],
)
def test_servers_that_hand_over_see_each_others_gpus_behind_their_own(
    layout: Layout, seen: list[str]
) -> None:
    engine = resolved()
    args = (("tensor_parallel_size", 2),)
    variant = replace(engine.variant, layout=layout, engine_args=args)
    engine = replace(engine, variant=variant, env=(("CUDA_VISIBLE_DEVICES", "4,5,6,7"),))
    assert [",".join(_devices(engine, number)) for number in range(2)] == seen
