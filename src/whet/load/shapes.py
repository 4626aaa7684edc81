"""Built-in traffic shapes whose best prefix hit rate is known by construction.

The best is that of a cache that begins empty and never evicts, with the requests sent one after
another: a request finds the full blocks of all before it, and never its own last token. What the
server generates is not counted: answers stand in later prompts as planned text, not as generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import accumulate
from math import comb, expm1, log1p, perm
from typing import Any, Final, Literal, Protocol, get_args

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.load.texts import seeded

Order = Literal["as_retrieved", "sorted"]

_MOST: Final = 1_000_000
"""Of any parameter that is read from words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a prompt: equal labels are equal tokens.

    ``head`` sets it apart: pieces that follow the same beginning differ in their first token.
    """

    label: str
    tokens: int
    head: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One request of a shape before it is written."""

    pieces: tuple[Piece, ...]
    max_tokens: int
    prefix_id: str


class Shape(Protocol):
    """Parameters of a shape, and what follows from them."""

    @property
    def seed(self) -> int:
        """Settles every draw; the tokens too."""

    def layouts(self) -> Iterator[Layout]:
        """The requests in the order in which they are sent."""

    def hit_blocks(self, block_size: int) -> int:
        """Σ blocks that the requests find."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleSystem:
    """One system prompt that all share, and a question of each request's own."""

    requests: int = 64
    system_tokens: int = 512
    question_tokens: int = 64
    output_tokens: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no request can be."""
        _require(self)

    def layouts(self) -> Iterator[Layout]:
        """System prompt, question."""
        system = _piece("system", self.system_tokens)
        for i in range(self.requests):
            question = _piece(f"question-{i}", self.question_tokens, i)
            yield _layout((system, question), self.output_tokens, "system")

    def hit_blocks(self, block_size: int) -> int:
        """(n − 1) ⌊s / b⌋."""
        return (self.requests - 1) * (self.system_tokens // block_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class FewShot:
    """Tasks of ``examples`` examples each, which all requests of the task begin with.

    Tasks are asked in turn. ``requests_per_task`` questions each.
    """

    tasks: int = 4
    examples: int = 5
    example_tokens: int = 96
    requests_per_task: int = 16
    question_tokens: int = 48
    output_tokens: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no request can be."""
        _require(self)

    def layouts(self) -> Iterator[Layout]:
        """Examples of the task, question."""
        shared = [
            [
                _piece(f"task-{task}/example-{k}", self.example_tokens, task)
                for k in range(self.examples)
            ]
            for task in range(self.tasks)
        ]
        for i in range(self.requests_per_task):
            for task in range(self.tasks):
                question = _piece(f"task-{task}/question-{i}", self.question_tokens, i)
                yield _layout((*shared[task], question), self.output_tokens, f"task-{task}")

    def hit_blocks(self, block_size: int) -> int:
        """t (r − 1) ⌊k e / b⌋."""
        again = self.tasks * (self.requests_per_task - 1)
        return again * (self.examples * self.example_tokens // block_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rag:
    """A system prompt, ``chunks`` different ones of a corpus, and a question of its own.

    Which, and in what order, is drawn evenly for each request; ``order`` ``sorted`` puts them in
    the corpus's own order, so that more requests begin alike.
    """

    requests: int = 64
    system_tokens: int = 128
    corpus: int = 12
    chunks: int = 4
    chunk_tokens: int = 192
    question_tokens: int = 48
    output_tokens: int = 32
    order: Order = "as_retrieved"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no request can be."""
        _require(self, least_system=1)
        if self.chunks > self.corpus:
            raise UsageError(
                f"{self.chunks} different chunks cannot come from a corpus of {self.corpus}; ask "
                "for fewer chunks"
            )
        if self.order not in get_args(Order):
            raise UsageError(
                f"no order {self.order!r} is known{did_you_mean(self.order, get_args(Order))}; "
                "give as_retrieved or sorted"
            )

    def retrieved(self) -> Iterator[tuple[int, ...]]:
        """The numbers of each request's chunks, in its order."""
        rng = seeded(f"rag/{self.seed}")
        for _ in range(self.requests):
            drawn = rng.permutation(self.corpus)[: self.chunks].tolist()
            yield tuple(sorted(drawn) if self.order == "sorted" else drawn)

    def layouts(self) -> Iterator[Layout]:
        """System prompt, chunks, question."""
        system = _piece("system", self.system_tokens)
        corpus = [_piece(f"chunk-{k}", self.chunk_tokens, k) for k in range(self.corpus)]
        asked: Counter[tuple[int, ...]] = Counter()
        for i, drawn in enumerate(self.retrieved()):
            question = _piece(f"question-{i}", self.question_tokens, asked[drawn])
            asked[drawn] += 1
            pieces = (system, *(corpus[k] for k in drawn), question)
            yield _layout(pieces, self.output_tokens, "system")

    def hit_blocks(self, block_size: int) -> int:
        """By the chunks that were drawn: ⌊(s + j d) / b⌋ after j that an earlier request had."""
        held: set[tuple[int, ...]] = set()
        blocks = 0
        for drawn in self.retrieved():
            beginnings = list(accumulate(((k,) for k in drawn), initial=()))
            known = sum(beginning in held for beginning in beginnings)
            if known:
                tokens = self.system_tokens + (known - 1) * self.chunk_tokens
                blocks += tokens // block_size
            held.update(beginnings)
        return blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiTurn:
    """Conversations whose every prompt extends the one before by an answer and a question.

    ``in_flight`` conversations are open at once and take turns. One system prompt is for all; 0
    tokens for none. Answers are planned texts of ``answer_tokens``; as many are generated.
    """

    conversations: int = 16
    turns: int = 5
    system_tokens: int = 256
    question_tokens: int = 48
    answer_tokens: int = 96
    in_flight: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no request can be."""
        _require(self)

    def layouts(self) -> Iterator[Layout]:
        """System prompt, question, and for each turn before: its answer and the next question."""
        system = _piece("system", self.system_tokens)
        for number, turn in _interleaved(self.conversations, self.turns, self.in_flight):
            name = f"conversation-{number}"
            first = _piece(f"{name}/question-0", self.question_tokens, number)
            history = [
                piece
                for k in range(1, turn + 1)
                for piece in (
                    _piece(f"{name}/answer-{k}", self.answer_tokens),
                    _piece(f"{name}/question-{k}", self.question_tokens),
                )
            ]
            yield _layout((system, first, *history), self.answer_tokens, name)

    def hit_blocks(self, block_size: int) -> int:
        """(c − 1) ⌊s / b⌋ + c Σ ⌊(s + q + k (a + q)) / b⌋ over k = 0 … t − 2."""
        first = self.system_tokens + self.question_tokens
        added = self.answer_tokens + self.question_tokens
        later = sum((first + k * added) // block_size for k in range(self.turns - 1))
        return (self.conversations - 1) * (
            self.system_tokens // block_size
        ) + self.conversations * later


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentLoop:
    """Agents with one system prompt and set of tools, each at a task of its own.

    Every step appends a tool call, which the step before generated, and its result. ``in_flight``
    agents are at work at once and take turns.
    """

    agents: int = 8
    steps: int = 8
    system_tokens: int = 768
    task_tokens: int = 64
    call_tokens: int = 32
    result_tokens: int = 128
    in_flight: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what no request can be."""
        _require(self)

    def layouts(self) -> Iterator[Layout]:
        """System prompt and tools, task, and for each step before: its call and the result."""
        system = _piece("system", self.system_tokens)
        for number, step in _interleaved(self.agents, self.steps, self.in_flight):
            name = f"agent-{number}"
            task = _piece(f"{name}/task", self.task_tokens, number)
            done = [
                piece
                for k in range(step)
                for piece in (
                    _piece(f"{name}/call-{k}", self.call_tokens),
                    _piece(f"{name}/result-{k}", self.result_tokens),
                )
            ]
            yield _layout((system, task, *done), self.call_tokens, name)

    def hit_blocks(self, block_size: int) -> int:
        """(a − 1) ⌊s / b⌋ + a Σ ⌊(s + u + k (c + r)) / b⌋ over k = 0 … steps − 2."""
        first, added = self.system_tokens + self.task_tokens, self.call_tokens + self.result_tokens
        later = sum((first + k * added) // block_size for k in range(self.steps - 1))
        return (self.agents - 1) * (self.system_tokens // block_size) + self.agents * later


SHAPES: Final[dict[str, type[SingleSystem | FewShot | Rag | MultiTurn | AgentLoop]]] = {
    "single": SingleSystem,
    "few-shot": FewShot,
    "rag": Rag,
    "multi-turn": MultiTurn,
    "agent": AgentLoop,
}


def shape_named(words: str, *, seed: int | None = None) -> Shape:
    """The shape of a name, alone or with parameters: ``few-shot:tasks=4,examples=8``.

    The others are as by default; ``seed`` is one more of them. ``UsageError`` for a name or a
    parameter that is not known, one that is given twice, and a value that it cannot have.
    """
    name, colon, told = words.partition(":")
    if name not in SHAPES:
        raise UsageError(
            f"no shape {name!r} is known{did_you_mean(name, SHAPES)}; give one of "
            f"{', '.join(SHAPES)}"
        )
    kind = SHAPES[name]
    defaults = {one.name: one.default for one in fields(kind)}
    values: dict[str, Any] = {} if seed is None else {"seed": seed}
    for part in told.split(",") if colon else ():
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals:
            raise UsageError(f"{words!r}: {part!r} is no key=value; write {name}:{_example(kind)}")
        if key not in defaults:
            raise UsageError(
                f"{name} has no parameter {key!r}{did_you_mean(key, defaults)}; it has "
                f"{', '.join(defaults)}"
            )
        if key in values:
            raise UsageError(f"{words!r}: {key} is given twice; leave one out")
        values[key] = value if isinstance(defaults[key], str) else _whole(key, value)
    return kind(**values)


def best_hit_tokens(shape: Shape, block_size: int) -> int:
    """Σ prompt tokens found, in blocks of ``block_size``: closed forms, for ``Rag`` its draws'."""
    _require_block(block_size)
    return shape.hit_blocks(block_size) * block_size


def expected_hit_tokens(shape: Rag, block_size: int) -> float:
    """The mean of ``best_hit_tokens`` over all draws.

    Let p be the chance that a request begins with j given chunks. Of R requests, R − (1 − (1 −
    p)^R) / p are expected to find them. As retrieved, p = 1 / (n)_j for any j of n chunks. Sorted,
    it is C(n − m, c − j) / C(n, c) where the last of the j is the m-th of the corpus, and
    C(m − 1, j − 1) beginnings are such.
    """
    _require_block(block_size)
    n, c, requests = shape.corpus, shape.chunks, shape.requests
    sums = [shape.system_tokens + j * shape.chunk_tokens for j in range(c + 1)]
    blocks = [tokens // block_size for tokens in sums]
    expected = float((requests - 1) * blocks[0])
    for j in range(1, c + 1):
        kinds = [(1.0, 1 / perm(n, j))]
        if shape.order == "sorted":
            ends = ((comb(m - 1, j - 1), comb(n - m, c - j)) for m in range(j, n - c + j + 1))
            kinds = [(many * ways / comb(n, c), ways / comb(n, c)) for many, ways in ends]
        found = sum(share * _repeats(p, requests) for share, p in kinds)
        expected += (blocks[j] - blocks[j - 1]) * found
    return expected * block_size


def shared_by_layout(layouts: Iterable[Layout]) -> list[int]:
    """For each request, the tokens of the longest beginning that an earlier one has, by labels."""
    places: dict[tuple[int, str], int] = {}
    shared = []
    for layout in layouts:
        place, common, known = 0, 0, True
        for piece in layout.pieces:
            known = known and (place, piece.label) in places
            common += piece.tokens if known else 0
            place = places.setdefault((place, piece.label), len(places) + 1)
        shared.append(common)
    return shared


def _repeats(p: float, requests: int) -> float:
    """R − (1 − (1 − p)^R) / p: of R requests that may each begin so, how many are not the first."""
    if p >= 1:
        return requests - 1
    if p <= 0:  # 1 / (n)_j is below what a float can hold
        return 0.0
    return requests + expm1(requests * log1p(-p)) / p


def _piece(label: str, tokens: int, head: int = 0) -> Piece:
    return Piece(label=label, tokens=tokens, head=head)


def _layout(pieces: tuple[Piece, ...], max_tokens: int, prefix_id: str) -> Layout:
    kept = tuple(piece for piece in pieces if piece.tokens)
    return Layout(pieces=kept, max_tokens=max_tokens, prefix_id=prefix_id)


def _interleaved(streams: int, steps: int, in_flight: int) -> Iterator[tuple[int, int]]:
    """(stream, step): ``in_flight`` streams step in turn until they are over, then the next."""
    for first in range(0, streams, in_flight):
        for step in range(steps):
            for stream in range(first, min(first + in_flight, streams)):
                yield stream, step


def _require(
    shape: SingleSystem | FewShot | Rag | MultiTurn | AgentLoop, *, least_system: int = 0
) -> None:
    least = {"seed": 0, "system_tokens": least_system}
    for name in type(shape).__slots__:
        value = getattr(shape, name)
        if isinstance(value, int) and value < least.get(name, 1):
            raise UsageError(
                f"{name} is {value}, and no such request can be; give {least.get(name, 1)} or more"
            )


def _example(kind: type[Any]) -> str:
    first = fields(kind)[0]
    return f"{first.name}={first.default}"


def _whole(key: str, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(_MOST)) and int(text) <= _MOST:
        return int(text)
    raise UsageError(f"{key}={text}: give a whole number of at most {_MOST:,}")


def _require_block(block_size: int) -> None:
    if block_size < 1:
        raise UsageError(f"a block of {block_size} tokens is none; give 1 or more")
