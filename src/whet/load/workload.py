"""Build a workload: shared and unique prefixes in stated shares, every user turn its own."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.core.errors import StorageError, UsageError
from whet.core.outside import json_value, read_text
from whet.core.records.load import PlannedRequest
from whet.load.plan import Draw, PlannedLoad, Workload, describe_requests, plan_requests

if TYPE_CHECKING:
    from whet.checkpoint.chat import Variables
    from whet.core.spec import WorkloadSpec

SAMPLED_TURNS: Final = 128
"""User turns whose answers are measured; the others take their lengths in turn."""


_TEXTS: Final = ("system_short", "system_long", "user")

Pool = Mapping[str, Sequence[str]]
"""Texts by kind, in file order."""


@lru_cache(maxsize=4)
def read_pool(path: Path) -> Pool:
    """Read ``workload.jsonl`` of a run's inputs; ``StorageError`` if it is missing or damaged."""
    texts: dict[str, list[str]] = defaultdict(list)
    try:
        for line in read_text(path).splitlines():
            row = json_value(line)
            texts[row["kind"]].append(row["text"])
        if missing := [kind for kind in _TEXTS if not texts[kind]]:
            raise ValueError(f"no {missing[0]} in it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the built-in texts in {path} cannot be read ({error})",
            fix="start a new run (--name)",
        ) from error
    return texts


class Renderer:
    """One tokenizer with its chat template, or a plain join where it has none."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """``max_tokens`` bounds a whole prompt; a longer user turn is cut at a word.

        ``variables`` are handed to the chat template.
        """
        from whet.checkpoint.chat import ChatTemplate

        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, variables=variables)
        self._max_tokens = max_tokens

    def render(self, system: str, user: str) -> tuple[int, ...]:
        """Token ids of the conversation up to where the answer begins."""
        ids = self._encode(system, user)
        if self._max_tokens is None or len(ids) <= self._max_tokens:
            return ids
        return self._shortened(system, user.split(" "), self._max_tokens)

    def _shortened(self, system: str, words: list[str], limit: int) -> tuple[int, ...]:
        """The longest beginning of the user turn that fits, by bisection over words."""
        longest: tuple[int, ...] = ()
        fits, too_many = 0, len(words)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            ids = self._encode(system, " ".join(words[:middle]))
            if len(ids) <= limit:
                longest, fits = ids, middle
            else:
                too_many = middle
        if not longest:
            raise UsageError(
                f"workload.max_input_tokens is {limit}, but a built-in system prompt leaves no "
                "room for a user turn",
                fix="raise it, set workload.long_system_share to 0, or set "
                "traffic: log.jsonl, your own request log",
            )
        return longest

    def _encode(self, system: str, user: str) -> tuple[int, ...]:
        from whet.checkpoint.chat import TemplateProblem

        if not self._template.source:
            return tuple(self._tokenizer.encode(f"{system}\n\n{user}"))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            text = self._template.chat(messages)
        except TemplateProblem as problem:
            raise UsageError(
                f"{problem}",
                fix="set model.chat_template_kwargs to the variables that it needs, or "
                "correct it in the tokenizer's files",
            ) from problem
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=4)
def load_renderer(folder: Path, max_tokens: int | None, variables: Variables = ()) -> Renderer:
    """Load the tokenizer in ``folder``; ``CheckpointError`` where it cannot be read."""
    from whet.checkpoint.tokenizer import load_tokenizer

    return Renderer(load_tokenizer(folder), max_tokens=max_tokens, variables=dict(variables))


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

    pool: Pool
    renderer: Renderer
    spec: WorkloadSpec
    label: str
    attempt: str = ""

    def user(self, index: int) -> int:
        """The number of the user turn that request ``index`` has."""
        return _number(f"{self.label}/user/{index}") % len(self.pool["user"])

    def prompt(self, kind: _Kind, index: int) -> tuple[int, ...]:
        """The prompt of request ``index``: its ticket number makes the user turn unique."""
        user = self.pool["user"][self.user(index)]
        ticket = f"{_number(f'{self.attempt}{self.label}/ticket/{index}') % 10**10:010d}"
        return self.renderer.render(self._system(kind, index), f"Ticket {ticket}\n{user}")

    def long_prompt(self, index: int, tokens: int) -> tuple[int, ...]:
        """A prompt of exactly ``tokens`` tokens, unique from its first line on."""
        own = _Kind(long=True, shared=None)
        parts = (self.prompt(own, (index + 1) * 1_000_003 + part) for part in count())
        return tuple(islice(chain.from_iterable(parts), tokens))

    def output_tokens(self, input_tokens: int) -> int:
        """A share of the prompt's length, within the bounds."""
        wanted = round(input_tokens / self.spec.input_output_ratio)
        return min(max(wanted, self.spec.min_output_tokens), self.spec.max_output_tokens)

    def _system(self, kind: _Kind, index: int) -> str:
        texts = self.pool["system_long" if kind.long else "system_short"]
        if kind.shared is None:
            number = _number(f"{self.label}/system/{index}")
            own = _number(f"{self.attempt}{self.label}/system/{index}")
            return f"Reference {own % 10**10:010d}\n{texts[number % len(texts)]}"
        text = texts[kind.shared % len(texts)]
        again = kind.shared // len(texts)  # a first line makes more prefixes than texts unique
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
    stand_in = replace(source, label=f"warm/{source.label}", attempt="")
    warm = [stand_in.prompt(kind, i) for i, kind in enumerate(_shared_kinds(spec))]
    requests = _plan(source, kinds, prompts, lengths, draw.block_size, warm)
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
    return _plan(source, kinds, prompts, lengths, draw.block_size)


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
    system = source.pool["system_long" if spec.long_system_share == 1 else "system_short"][0]
    return tuple(
        source.renderer.render(system, f"Ticket 0000000000\n{user}")
        for user in source.pool["user"][:SAMPLED_TURNS]
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


def _plan(
    source: _Source,
    kinds: Sequence[_Kind],
    prompts: Sequence[tuple[int, ...]],
    lengths: Sequence[int],
    block_size: int,
    warm: Sequence[tuple[int, ...]] = (),
) -> tuple[PlannedRequest, ...]:
    """Requests that share with one another, or with what the warm-up leaves in the cache."""
    outputs = [
        lengths[source.user(at) % len(lengths)] if lengths else source.output_tokens(len(prompt))
        for at, prompt in enumerate(prompts)
    ]
    return plan_requests(
        prompts,
        outputs,
        block_size=block_size,
        warm=warm,
        prefix_ids=[kind.prefix_id for kind in kinds],
        temperature=source.spec.temperature,
    )
