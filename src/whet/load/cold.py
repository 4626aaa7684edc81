"""Requests whose order is known, and what they find in a cache that was empty before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from whet.core.records.load import PlannedRequest
from whet.load.plan import Workload, describe_requests
from whet.load.sharing import TokenIds
from whet.load.synthetic import cold_hit_rate, shared_with_neighbours


def cold_workload(
    prompts: Sequence[TokenIds],
    outputs: Sequence[int],
    *,
    block_size: int,
    seed: int,
) -> Workload:
    """A workload whose expected hit rate is that of an empty cache, in this order.

    Prompts that share their first block have one ``prefix_id``, numbered as they first occur.
    """
    shared = shared_with_neighbours(prompts, warm=(), block_size=block_size)
    starts = [
        ids[:block_size] if tokens else () for ids, tokens in zip(prompts, shared, strict=True)
    ]
    numbers = {start: number for number, start in enumerate(dict.fromkeys(filter(None, starts)))}
    prefix_ids = [f"found-{numbers[start]}" if start else None for start in starts]
    requests = tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=ids,
            max_tokens=outputs[index],
            prefix_id=prefix_ids[index],
            shared_tokens=shared[index],
        )
        for index, ids in enumerate(prompts)
    )
    facts = describe_requests(requests, block_size=block_size, seed=seed)
    cold = cold_hit_rate(prompts, block_size=block_size)
    return Workload(requests=requests, facts=replace(facts, expected_hit_rate=cold))
