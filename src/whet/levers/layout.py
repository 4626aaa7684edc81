"""Several servers behind a router: replicas, or prefill apart from decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.records.engine import Layout, ResolvedEngine, Variant
from whet.core.records.evidence import Claim
from whet.levers.base import Cell, Lever, Outcome, claim_per_cell
from whet.levers.counters import counter_change, idle, unread

GENERATED_BY: Final = "router:generation_tokens_total"
BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
FAILED: Final = "vllm:nixl_num_failed_transfers_total"
_FAIR: Final = 0.5
"""A replica has to generate this share of what would be even."""


class LayoutLever(Lever):
    """``layout``: how many servers answer, and whether some compute prompts alone."""

    name = "layout"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``layout=2 replicas``."""
        if variant.layout is not None:
            yield f"layout={variant.layout.text}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Every server worked, and with prefill servers the KV cache came from them."""
        layout = resolved.variant.layout
        if layout is None:
            return
        yield claim_per_cell(
            "layout",
            f"requests are answered by {layout.text}",
            f"each decode server generates at least {_FAIR:.0%} of an even share",
        )
        if layout.prefill:
            yield claim_per_cell(
                "kv_transfer",
                f"prompts are computed apart, and their KV cache comes through {layout.connector}",
                "the decode servers receive more tokens of prompts than they compute",
            )

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """By the counters of each server."""
        layout = cell.variant.layout
        assert layout is not None
        return _answered(cell, layout) if claim.kind == "layout" else _transferred(cell)


def _answered(cell: Cell, layout: Layout) -> Outcome:
    changes = [
        counter_change(f'{GENERATED_BY}{{source="decode{number}"}}', cell.trials)
        for number in range(layout.decode)
    ]
    deltas = [change.delta for change in changes if change.delta is not None]
    if len(deltas) < len(changes):
        return unread(*changes)
    sources = tuple(change.source for change in changes)
    if not (whole := sum(deltas)):
        return idle(changes[0])
    shares = ", ".join(f"{delta / whole:.0%}" for delta in deltas)
    observed = f"shares of the generated tokens: {shares}"
    if min(deltas) == 0:
        return "contradicted", observed, sources
    even = min(deltas) / whole >= _FAIR / layout.decode
    return ("proved" if even else "unproved"), observed, sources


def _transferred(cell: Cell) -> Outcome:
    received = counter_change(f'{BY_SOURCE}{{source="external_kv_transfer"}}', cell.trials)
    computed = counter_change(f'{BY_SOURCE}{{source="local_compute"}}', cell.trials)
    failed = counter_change(FAILED, cell.trials)
    if received.delta is None or computed.delta is None:
        return unread(received, computed)
    sources = (received.source, computed.source)
    if failed.delta:
        return "contradicted", f"{failed.delta:,.0f} transfers failed", (*sources, failed.source)
    observed = f"{received.delta:,.0f} tokens of prompts received, {computed.delta:,.0f} computed"
    if not received.delta:
        return "contradicted", f"the decode servers compute every prompt: {observed}", sources
    return ("proved" if received.delta > computed.delta else "unproved"), observed, sources
