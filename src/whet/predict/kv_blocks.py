"""How many blocks of KV cache a request takes, as vLLM's hybrid allocator counts them.

Layers of one kind share block tables. Where kinds differ, all draw blocks of one size from one
pool: a kind's layers are cut into groups of equal length, and each group takes blocks of its own
(``get_kv_cache_groups`` and ``unify_kv_cache_spec_page_size`` of vLLM 0.32). Full attention takes
``⌈tokens/block⌉``, a window ``⌈min(window − 1 + tokens in flight, tokens)/block⌉ + 1``, a chunk the
same without the one more, a state one block, or more where prefixes are cached.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from whet.core.records.model import KvLayers, ModelFacts
from whet.predict.settings import Settings

_SPLIT = 1.5
"""Kinds whose counts differ by less are padded to the larger one (vLLM's own heuristic)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Like layers on one device: bytes of one token in one layer, or of one state (``state``)."""

    layers: int
    width: int
    window: int | None = None
    chunked: bool = False
    state: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """``count`` block tables whose blocks hold ``block`` tokens of one kind."""

    count: int
    block: int
    kind: Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Blocks of one size, from which every group draws. ``states`` are kept of each request."""

    block_bytes: int
    groups: tuple[Group, ...]
    states: int

    def blocks(self, tokens: int, *, in_flight: int) -> int:
        """Blocks of one request; ``in_flight`` tokens may be computed before old ones are freed."""
        return sum(each.count * self._blocks(each, tokens, in_flight) for each in self.groups)

    def _blocks(self, group: Group, tokens: int, in_flight: int) -> int:
        kind = group.kind
        if kind.state:
            return self.states
        if kind.window is None:
            return math.ceil(tokens / group.block)
        if kind.chunked:
            return math.ceil(min(kind.window + in_flight, tokens) / group.block)
        return math.ceil(min(kind.window - 1 + in_flight, tokens) / group.block) + 1

    def longest(self, blocks: int, *, in_flight: int) -> int:
        """The longest request, in whole blocks, that ``blocks`` have room for."""
        step = max(each.block for each in self.groups)
        counts = range(1, blocks + 1)
        return step * bisect_right(
            counts, blocks, key=lambda count: self.blocks(count * step, in_flight=in_flight)
        )


def kinds_of(facts: ModelFacts, settings: Settings) -> list[Kind]:
    """What one device keeps of each of the model's layers.

    Heads are split over the devices, and replicated where there are fewer heads than devices; a
    latent is not split, a state is. A pipeline's stages hold a share of the layers each.
    """
    layers = facts.kv_layers or (_alike(facts),)
    kinds = [_kind(each, settings) for each in layers if each.layers]
    if (states := facts.states) is not None:
        size = states.bytes_per_request + (states.half_bytes if settings.float32_states else 0)
        kinds.append(
            Kind(
                layers=math.ceil(states.layers / settings.pipeline_parallel),
                width=math.ceil(size / settings.tensor_parallel),
                state=True,
            )
        )
    return kinds


def _alike(facts: ModelFacts) -> KvLayers:
    """The layers of records that do not list them."""
    total, layers = facts.kv_bytes_per_token, facts.layers
    count = layers if total % layers == 0 else 1
    heads = 1 if facts.mla else facts.kv_heads
    return KvLayers(layers=count, kv_heads=heads, bytes_per_token=total // count)


def _kind(layers: KvLayers, settings: Settings) -> Kind:
    share = max(layers.kv_heads / settings.tensor_parallel, 1) / layers.kv_heads
    unbounded = settings.free_windows is False
    return Kind(
        layers=math.ceil(layers.layers / settings.pipeline_parallel),
        width=math.ceil(layers.bytes_per_token * share * settings.kv_factor),
        window=None if unbounded else layers.window,
        chunked=layers.chunked and not unbounded,
    )


def growing_bytes(kinds: Sequence[Kind]) -> int:
    """Bytes a token of the layers that keep every token."""
    return sum(each.layers * each.width for each in kinds if each.window is None and not each.state)


def share_pool(kinds: Sequence[Kind], *, block: int, states: int) -> Pool:
    """The pool that layers of these kinds share; ``block`` is the engine's tokens a block.

    Where layers have a state, vLLM lengthens attention's blocks until one holds a state
    (``_align_hybrid_block_size``). Where bytes a token differ, the narrower kind's blocks hold more
    tokens if the sizes divide, and are padded if not.
    """
    if len({(each.window, each.chunked, each.state) for each in kinds}) <= 1:
        first = kinds[0]
        size = sum(each.layers * each.width for each in kinds) * (1 if first.state else block)
        group = Group(count=1, block=block, kind=first)
        return Pool(block_bytes=max(size, 1), groups=(group,), states=states)
    kinds = list(_merged(kinds))
    widest = max((each.width for each in kinds if not each.state), default=1)
    state = max((each.width for each in kinds if each.state), default=0)
    block *= max(math.ceil(state / (block * widest)), 1)
    page = max(state, block * widest)
    fewest, most = min(each.layers for each in kinds), max(each.layers for each in kinds)
    length = most if most < _SPLIT * fewest else fewest
    groups = tuple(
        Group(
            count=math.ceil(each.layers / length),
            block=page // each.width
            if not each.state and page % (block * each.width) == 0
            else block,
            kind=each,
        )
        for each in kinds
    )
    return Pool(block_bytes=length * page, groups=groups, states=states)


def _merged(kinds: Sequence[Kind]) -> Iterator[Kind]:
    """Kinds that differ in the number of their layers only are one."""
    shapes = {replace(each, layers=0) for each in kinds}
    for shape in sorted(shapes, key=lambda each: (each.state, each.window or 0, each.width)):
        layers = sum(each.layers for each in kinds if replace(each, layers=0) == shape)
        yield replace(shape, layers=layers)
