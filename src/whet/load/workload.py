"""Build a workload: shared and unique prefixes in stated shares, every user turn its own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.core.records.load import PlannedRequest
from whet.load.plan import Draw, PlannedLoad, Workload, describe_requests
from whet.load.prompts import PromptPool, Renderer, load_renderer, read_pool
from whet.load.sharing import shared_tokens

if TYPE_CHECKING:
    from whet.checkpoint.chat import Variables
    from whet.core.spec import WorkloadSpec

SAMPLED_TURNS: Final = 128
"""User turns whose answers are measured; the others take their lengths in turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """What one request is made of: which length, and which shared prefix if any."""

    long: bool
    shared: int | None

    @property
    def prefix_id(self) -> str | None:
        if self.shared is None:
            return None
        return f"{'long' if self.long else 'short'}-{self.shared}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Where prompts come from. ``label`` and ``attempt`` set a draw's unique parts apart."""

    pool: PromptPool
    renderer: Renderer
    spec: WorkloadSpec
    label: str
    attempt: str = ""

    def user(self, index: int) -> int:
        """The number of the user turn that request ``index`` has."""
        return _number(f"{self.label}/user/{index}") % len(self.pool.user)

    def prompt(self, kind: _Kind, index: int) -> tuple[int, ...]:
        """The prompt of request ``index``: its ticket number makes the user turn unique."""
        user = self.pool.user[self.user(index)]
        ticket = f"{_number(f'{self.attempt}{self.label}/ticket/{index}') % 10**10:010d}"
        return self.renderer.render(self._system(kind, index), f"Ticket {ticket}\n{user}")

    def long_prompt(self, index: int, tokens: int) -> tuple[int, ...]:
        """A prompt of exactly ``tokens`` tokens, unique from its first line on."""
        own = _Kind(long=True, shared=None)
        parts = (self.prompt(own, (index + 1) * 1_000_003 + part) for part in count())
        return tuple(islice(chain.from_iterable(parts), tokens))

    def _system(self, kind: _Kind, index: int) -> str:
        texts = self.pool.systems(long=kind.long)
        if kind.shared is None:
            number = _number(f"{self.label}/system/{index}")
            own = _number(f"{self.attempt}{self.label}/system/{index}")
            return f"Reference {own % 10**10:010d}\n{texts[number % len(texts)]}"
        text = texts[kind.shared % len(texts)]
        again = kind.shared // len(
            texts
        )  # more prefixes than texts: a first line makes each unique
        return text if again == 0 else f"Desk {again + 1}\n{text}"


def build_workload(
    pool: Path,
    tokenizer: Path,
    spec: WorkloadSpec,
    *,
    draw: Draw,
    lengths: Sequence[int] = (),
    variables: Variables = (),
) -> PlannedLoad:
    """The timed requests of one trial at one concurrency, and its warm-up.

    The warm-up, where one is drawn, is each shared prefix once, then a mix: at least as many
    requests as prefixes, since the expected hit rate holds only once every prefix is warm.
    ``lengths`` are output tokens of the answers to ``sample_turns``; without any they are a share
    of the prompt's. ``variables`` are handed to the chat template.

    The same arguments give the same requests and the same hash. Raises ``UsageError`` where
    ``max_input_tokens`` has no room for a user turn, ``CheckpointError`` for a tokenizer that
    cannot be read.
    """
    label = f"{spec.seed}/{draw.load}/{draw.trial}"
    source = _Source(
        pool=read_pool(pool),
        renderer=load_renderer(tokenizer, spec.max_input_tokens, variables),
        spec=spec,
        label=f"timed/{label}",
        attempt=draw.attempt,
    )
    kinds = _kinds(spec, draw.requests, seed=source.label)
    prompts = [source.prompt(kind, index) for index, kind in enumerate(kinds)]
    for index in _long_indices(spec, draw.requests):
        kinds[index] = _Kind(long=True, shared=None)
        prompts[index] = source.long_prompt(index, spec.long_prompt_tokens)
    warm = _warm_prompts(source, spec)
    shared = shared_tokens(prompts, warm=warm, block_size=draw.block_size)
    requests = _plan(source, kinds, prompts, shared, lengths)
    facts = replace(
        describe_requests(requests, block_size=draw.block_size, seed=spec.seed),
        long_system_share=sum(kind.long for kind in kinds) / len(kinds),
        sources=tuple(source.user(index) for index in range(len(requests))),
    )
    before = replace(source, label=f"warmup/{label}")
    return PlannedLoad(
        workload=Workload(requests=requests, facts=facts),
        warmup=_warmup(before, draw, lengths) if draw.warmup else (),
    )


def _warmup(source: _Source, draw: Draw, lengths: Sequence[int]) -> tuple[PlannedRequest, ...]:
    every = _shared_kinds(source.spec)
    rest = _kinds(source.spec, max(0, draw.warmup - len(every)), seed=source.label)
    kinds = [*every, *rest]
    prompts = [source.prompt(kind, index) for index, kind in enumerate(kinds)]
    shared = shared_tokens(prompts, warm=(), block_size=draw.block_size)
    return _plan(source, kinds, prompts, shared, lengths)


def sample_turns(
    pool: Path, tokenizer: Path, spec: WorkloadSpec, variables: Variables = ()
) -> tuple[tuple[int, ...], ...]:
    """The first user turns below one system prompt, as token ids: for their lengths."""
    source = _Source(
        pool=read_pool(pool),
        renderer=load_renderer(tokenizer, spec.max_input_tokens, variables),
        spec=spec,
        label="lengths",
    )
    system = source.pool.systems(long=spec.long_system_share == 1)[0]
    return tuple(
        source.renderer.render(system, f"Ticket 0000000000\n{user}")
        for user in source.pool.user[:SAMPLED_TURNS]
    )


def _number(text: str) -> int:
    """A number that looks random and is the same on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _kinds(spec: WorkloadSpec, requests: int, *, seed: str) -> list[_Kind]:
    """Exact shares rather than coin tosses: a trial of 16 requests has the make-up it states."""
    shared = round(requests * spec.shared_prefix_share)
    kinds = []
    for group, size in (("shared", shared), ("unique", requests - shared)):
        longs = round(size * spec.long_system_share)
        for position in range(size):
            long = position < longs
            nth = position if long else position - longs
            kinds.append(
                _Kind(long=long, shared=nth % spec.shared_prefixes if group == "shared" else None)
            )
    random.Random(_number(seed)).shuffle(kinds)
    return kinds


def _long_indices(spec: WorkloadSpec, requests: int) -> list[int]:
    """Requests with a long prompt, at equal distances."""
    longs = round(requests * spec.long_prompts)
    return [(2 * number + 1) * requests // (2 * longs) for number in range(longs)]


def _shared_kinds(spec: WorkloadSpec) -> list[_Kind]:
    """Every shared prefix that the shares let occur, once."""
    if spec.shared_prefix_share == 0:
        return []
    shares = {False: 1 - spec.long_system_share, True: spec.long_system_share}
    lengths = [long for long, share in shares.items() if share > 0]
    return [_Kind(long=long, shared=i) for long in lengths for i in range(spec.shared_prefixes)]


def _warm_prompts(source: _Source, spec: WorkloadSpec) -> list[tuple[int, ...]]:
    """One stand-in for each shared prefix, as the warm-up leaves it in the cache."""
    stand_in = _Source(
        pool=source.pool, renderer=source.renderer, spec=spec, label=f"warm/{source.label}"
    )
    return [stand_in.prompt(kind, i) for i, kind in enumerate(_shared_kinds(spec))]


def _plan(
    source: _Source,
    kinds: Sequence[_Kind],
    prompts: Sequence[tuple[int, ...]],
    shared: Sequence[int],
    lengths: Sequence[int],
) -> tuple[PlannedRequest, ...]:
    def output_tokens(index: int, prompt: Sequence[int]) -> int:
        if lengths:
            return lengths[source.user(index) % len(lengths)]
        return _output_tokens(source.spec, len(prompt))

    return tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=prompt,
            max_tokens=output_tokens(index, prompt),
            prefix_id=kind.prefix_id,
            shared_tokens=tokens,
            temperature=source.spec.temperature,
        )
        for index, (kind, prompt, tokens) in enumerate(zip(kinds, prompts, shared, strict=True))
    )


def _output_tokens(spec: WorkloadSpec, input_tokens: int) -> int:
    wanted = round(input_tokens / spec.input_output_ratio)
    return min(max(wanted, spec.min_output_tokens), spec.max_output_tokens)
