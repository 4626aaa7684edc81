"""Multi-turn conversations: every prompt is the whole history, and so extends the one before.

The history holds the answers that the server really gave, as chat messages: their text is not
certain to read back as the ids that were generated, so the expected hit rates are those of answers
that do, in a cache that holds every open conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic_ns
from typing import Any

import numpy as np

from whet.client import CompletionCall, Exchange, StreamClient, read_event
from whet.core.errors import UsageError
from whet.core.units import NS_PER_MS, NS_PER_S
from whet.load.open import abort_open, check_alive, run_slots
from whet.load.plan import TEMPERATURE, PlannedConversation, PlannedTurn
from whet.load.sharing import shared_tokens
from whet.load.texts import TextTokenizer, exact_text, seeded
from whet.load.turns import LocalTurns, Turns

_ROLE_ASKS, _ROLE_ANSWERS = "user", "assistant"

Message = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationShape:
    """What to draw.

    ``first_tokens`` is the whole first prompt as the chat template makes it, ``added_tokens`` the
    user's words of each later turn, ``output_tokens`` each answer, ``think_ms`` the pause before
    each later turn. ``system`` is one system prompt for all. ``ignore_eos`` False sends no field
    that only vLLM knows; answers may then end early. ``extra`` is sent with every turn.
    """

    conversations: int
    turns: int
    first_tokens: int
    added_tokens: int
    output_tokens: int
    think_ms: int = 0
    system: str | None = None
    ignore_eos: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a shape without turns, or with turns without tokens."""
        if self.conversations < 1:
            raise UsageError("there must be at least 1 conversation")
        for name in ("turns", "first_tokens", "added_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}", fix="give 1 or more")
        if self.system == "":
            raise UsageError("the system prompt is empty", fix="leave system out for none")
        if self.seed < 0:
            raise UsageError(f"a seed of {self.seed} cannot be used", fix="give 0 or more")


def plan_conversations(
    shape: ConversationShape, tokenizer: TextTokenizer, *, concurrency: int, trial: int
) -> tuple[PlannedConversation, ...]:
    """All conversations, fresh for every (concurrency, trial); turns are numbered through.

    Raises ``UsageError`` where the tokenizer has no chat template, or a first prompt is shorter
    than what the template puts around it.
    """
    rng = seeded(f"conversations/{shape.seed}/{concurrency}/{trial}")
    heads = rng.permutation(tokenizer.heads).tolist()
    if not heads:
        raise UsageError(
            "the tokenizer has no words of letters to write with", fix="use another one"
        )
    frame_tokens = _turn_frame_tokens(tokenizer)
    planned: list[PlannedConversation] = []
    for number in range(shape.conversations):
        texts = _user_texts(shape, tokenizer, head=heads[number % len(heads)], rng=rng)
        first_ids = tokenizer.chat_ids(_first_messages(shape.system, texts[0]))
        added = [len(tokenizer.content_ids(text)) + frame_tokens for text in texts[1:]]
        turns = _plan_turns(shape, texts, [len(first_ids), *added], index=number * shape.turns)
        planned.append(
            PlannedConversation(
                index=number, system=shape.system, turns=turns, first_token_ids=first_ids
            )
        )
    return tuple(planned)


def expected_hit_rate(conversations: Sequence[PlannedConversation], *, block_size: int) -> float:
    """Σ tokens found ÷ Σ prompt tokens, as planned.

    A later turn finds the turn before; a first one what it has in common with other first ones.
    """
    firsts = [conversation.first_token_ids for conversation in conversations]
    hits = sum(shared_tokens(firsts, warm=(), block_size=block_size))
    for conversation in conversations:
        for before, turn in pairwise(conversation.turns):
            held = before.prompt_tokens + before.max_tokens
            hits += _cached_tokens(held, turn.prompt_tokens, block_size)
    turns = [turn for conversation in conversations for turn in conversation.turns]
    return hits / sum(turn.prompt_tokens for turn in turns)


class Conversations:
    """Conversations in C slots; a slot takes the next one when its last is over.

    A first turn is scheduled when its slot becomes free, a later one when the turn before has
    ended and was thought over. An answer that failed ends its conversation; ``skipped_turns``
    counts the turns that were therefore never sent. The answer is read and the next turn encoded
    in a thread between the two, so that no other stream's timestamps wait for it; with a think
    time of 0 that work is part of the delay from schedule to send. ``drained_ns`` is when a slot
    first found no conversation left. Times are absolute monotonic ns.
    """

    def __init__(
        self,
        client: StreamClient,
        *,
        slots: int,
        alive: Callable[[], None],
        turns: Turns | None = None,
    ) -> None:
        """``alive`` and ``turns`` as in ``ClosedLoop``; a turn of these is a conversation."""
        self._client = client
        self._slots = slots
        self._alive = alive
        self._turns = turns
        self._opened: list[tuple[PlannedConversation, Exchange]] = []
        self.started_ns = 0
        self.drained_ns = 0
        self.skipped_turns = 0
        self.sent: list[Exchange] = []

    async def run(self, conversations: Sequence[PlannedConversation]) -> None:
        """Send all; raises ``EngineLostError`` as soon as ``alive`` does, with ``sent`` kept."""
        self.prepare(conversations)
        self._turns = self._turns or LocalTurns(len(conversations))
        self.started_ns = self.started_ns or monotonic_ns()
        try:
            await run_slots(self._slots, self._slot)
        finally:
            abort_open(self.sent, ())
            self.drained_ns = self.drained_ns or monotonic_ns()

    def prepare(self, conversations: Sequence[PlannedConversation]) -> None:
        """Encode the first turns, once; ``run`` does it where nobody did before."""
        for conversation in conversations[len(self._opened) :]:
            messages = _first_messages(conversation.system, conversation.turns[0].user)
            self._opened.append((conversation, self._encode(conversation, 0, messages)))

    async def _slot(self) -> None:
        assert self._turns is not None
        free_ns = self.started_ns
        while (index := self._turns()) is not None:
            conversation, first = self._opened[index]
            free_ns = await self._converse(conversation, first, free_ns)
        # Slots come in the order in which they were read, not in that of the kernel's own times.
        self.drained_ns = min(self.drained_ns or free_ns, free_ns)

    async def _converse(
        self, conversation: PlannedConversation, first: Exchange, due_ns: int
    ) -> int:
        """Turn after turn; returns when the last one that was sent has ended."""
        messages = _first_messages(conversation.system, conversation.turns[0].user)
        exchange: Exchange | None = first
        for number, turn in enumerate(conversation.turns):
            if exchange is None:
                self.skipped_turns += len(conversation.turns) - number
                self._alive()
                break
            if number > 0:
                due_ns += turn.think_ns
                await _until(due_ns)
            exchange.scheduled_ns = due_ns
            self.sent.append(exchange)
            await self._client.send(exchange)
            due_ns = exchange.ended_ns
            if number + 1 < len(conversation.turns):
                exchange = await asyncio.to_thread(
                    self._follow, conversation, number + 1, messages, exchange
                )
            else:
                check_alive(exchange, self._alive)
        return due_ns

    def _follow(
        self,
        conversation: PlannedConversation,
        number: int,
        messages: list[Message],
        ended: Exchange,
    ) -> Exchange | None:
        """The next turn in bytes, with the answer in its history; None after a failed answer."""
        event = read_event(ended, origin_ns=0)
        if event.error is not None:
            return None
        messages.append({"role": _ROLE_ANSWERS, "content": event.text})
        messages.append({"role": _ROLE_ASKS, "content": conversation.turns[number].user})
        return self._encode(conversation, number, messages)

    def _encode(
        self, conversation: PlannedConversation, number: int, messages: Sequence[Message]
    ) -> Exchange:
        turn = conversation.turns[number]
        call = CompletionCall(
            messages=tuple(messages),
            max_tokens=turn.max_tokens,
            temperature=TEMPERATURE,
            ignore_eos=turn.ignore_eos,
            extra=turn.extra,
        )
        return self._client.prepare(call, index=turn.index, prefix_id=conversation.prefix_id)


async def _until(due_ns: int) -> None:
    """Never early: a loop may wake a sleeper within its timer's grain."""
    while (left_ns := due_ns - monotonic_ns()) > 0:
        await asyncio.sleep(left_ns / NS_PER_S)


def _first_messages(system: str | None, user: str) -> list[Message]:
    question = {"role": _ROLE_ASKS, "content": user}
    return [question] if system is None else [{"role": "system", "content": system}, question]


def _turn_frame_tokens(tokenizer: TextTokenizer) -> int:
    """What the template puts around an answer and the next question, in tokens."""
    question, answer = ({"role": role, "content": "a"} for role in (_ROLE_ASKS, _ROLE_ANSWERS))
    longer, shorter = (
        tokenizer.chat_ids([question, answer, question]),
        tokenizer.chat_ids([question]),
    )
    return len(longer) - len(shorter) - 2 * len(tokenizer.content_ids("a"))


def _user_texts(
    shape: ConversationShape,
    tokenizer: TextTokenizer,
    *,
    head: str,
    rng: np.random.Generator,
) -> list[str]:
    """``head`` sets the first prompt apart from those of other conversations."""

    def first_tokens(text: str) -> int:
        return len(tokenizer.chat_ids(_first_messages(shape.system, text)))

    words = tokenizer.words
    texts = [exact_text(shape.first_tokens, head=head, words=words, measure=first_tokens, rng=rng)]
    for _ in range(shape.turns - 1):
        texts.append(
            exact_text(
                shape.added_tokens,
                head=chr(ord("a") + int(rng.integers(26))),
                words=words,
                measure=lambda text: len(tokenizer.content_ids(text)),
                rng=rng,
            )
        )
    return texts


def _plan_turns(
    shape: ConversationShape,
    texts: Sequence[str],
    added_tokens: Sequence[int],
    *,
    index: int,
) -> tuple[PlannedTurn, ...]:
    """``added_tokens`` is what each turn adds to the history before it, its frame included."""
    history = np.cumsum(added_tokens) + shape.output_tokens * np.arange(len(texts))
    return tuple(
        PlannedTurn(
            index=index + number,
            user=text,
            prompt_tokens=int(history[number]),
            max_tokens=shape.output_tokens,
            think_ns=shape.think_ms * NS_PER_MS if number > 0 else 0,
            ignore_eos=shape.ignore_eos,
            extra=shape.extra,
        )
        for number, text in enumerate(texts)
    )


def _cached_tokens(held_tokens: int, prompt_tokens: int, block_size: int) -> int:
    return min(max(0, held_tokens - 1), prompt_tokens - 1) // block_size * block_size
