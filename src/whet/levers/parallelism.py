"""Tensor, pipeline, data and expert parallelism; several servers behind a router."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.flags import plain_args
from whet.core.records.engine import Layout, ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim
from whet.levers.base import Cell, Lever, Outcome, Start, claim_per_cell, claim_per_start
from whet.levers.counters import counter_change, idle, unread
from whet.levers.settings import PARALLEL, same_value


class Parallelism(Lever):
    """``tensor_parallel_size`` and the others; a size of 1 does not count."""

    name = "parallelism"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where more than one device is requested."""
        if sizes := _sizes(resolved.variant):
            yield claim_per_start(
                "parallelism",
                ", ".join(f"{name}={value}" for name, value in sizes.items()),
                "the layers' tp_size, the ranks in the log, the engines in /metrics and "
                "/server_info",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Sizes as the layers, the ranks and the metrics show them, not only as resolved."""
        reported = {
            "tensor_parallel_size": _text(start.facts.tensor_parallel),
            "data_parallel_size": _text(start.declared.engines),
            "pipeline_parallel_size": start.declared.setting(
                "parallel_config.pipeline_parallel_size"
            ),
            "enable_expert_parallel": _text(start.facts.expert_parallel),
        }
        sizes = _sizes(start.variant)
        known = {name: value for name in sizes if (value := reported[name]) is not None}
        quotes = tuple(f"{name}: {value}" for name, value in known.items())
        wrong = [
            f"{name} is {value}"
            for name, value in known.items()
            if not same_value(sizes[name], value)
        ]
        if wrong:
            return "contradicted", "; ".join(wrong), quotes
        missing = [name for name in sizes if name not in known]
        if missing:
            return "unproved", f"no source reports {', '.join(missing)}", quotes
        return "proved", "; ".join(quotes), quotes


def _sizes(variant: Variant) -> dict[str, Scalar]:
    args = plain_args(variant)
    given = ((name, args.get(name, False)) for name in PARALLEL)
    return {name: each for name, each in given if each is True or each not in (1, "1", False)}


def _text(value: int | bool | None) -> str | None:
    return None if value is None else str(value)


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
