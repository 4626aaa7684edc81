"""Requests of a user's own log: as the traffic of a trial, and as the calls that send them again.

Every trial plays whole groups of the log's load part, drawn anew: a conversation, or those about
one text. Each prompt of a play begins with a mark such as ``[b8-t0]``, so that a prefix cache
answers from requests of the same play alone: one server is sent several plays, and some
conversations twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from whet.checkpoint.chat import TemplateProblem
from whet.checkpoint.encoder import PromptEncoder
from whet.client import CompletionCall
from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.load import Load
from whet.core.records.load import PlannedRequest
from whet.load.plan import TEMPERATURE, Draw, PlannedLoad, Workload, describe_requests, to_call
from whet.load.sharing import cached_tokens
from whet.load.texts import seeded
from whet.requests import LoggedRequest, finding
from whet.requests.sample import SampledRequest, beginning, prompt_number

SENT: Final = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
     "repetition_penalty", "seed"}
)  # fmt: skip
"""Sampling parameters that are sent again; what binds an answer's form is not, for it is timed."""
SAMPLER: Final = SENT | {"stop", "stop_token_ids", "bad_words", "min_tokens"}
"""Replaced by the sampling of the measurement, with answers as long as logged."""
SEVERAL: Final = frozenset({"n", "best_of", "logprobs", "top_logprobs"})
"""What an answer of one choice, without probabilities, does not have: never sent."""
_MESSAGE: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal",
     "reasoning", "reasoning_content", "tools"}
)  # fmt: skip
"""Fields of a message that a server takes; datasets have others."""
_USUAL: Final = (("n", 1), ("best_of", 1), ("logprobs", False), ("tool_choice", "auto"))
_MOST_HEADS: Final = 64
MARK_TOKENS: Final = 24
"""The most tokens that the marks of a play take."""


def build_logged(
    sample: Sequence[SampledRequest],
    encoder: PromptEncoder,
    *,
    draw: Draw,
    lengths: Sequence[int] = (),
) -> PlannedLoad:
    """The requests of one trial: whole groups until there are ``draw.requests``.

    The warm-up also has one request for each beginning that several conversations share. Answers
    without a length in the log have one of ``lengths``. Raises ``UsageError`` where a length is not
    known.
    """
    mark = f"[{draw.attempt}b{draw.load.value:g}-t{draw.trial}] "
    groups = _drawn(sample, f"{draw.load}/{draw.trial}")
    timed, rest = _dealt(groups, draw.requests)
    timed = _apart(timed, 2 * _in_flight(draw.load))
    play = _Play(encoder=encoder, mark=mark, lengths=lengths)
    requests = play.plan(timed)
    before = _warmup(timed, rest, draw.warmup) if draw.warmup else []
    warm = play.plan(before)
    prompts = [each.prompt_token_ids for each in requests]
    cached = partial(
        cached_tokens, warm=[each.prompt_token_ids for each in warm], block_size=draw.block_size
    )
    planned = tuple(
        replace(each, shared_tokens=tokens, prefix_id="log" if tokens else None)
        for each, tokens in zip(requests, cached(prompts), strict=True)
    )
    facts = describe_requests(planned, block_size=draw.block_size, seed=0)
    least = sum(cached(prompts, in_flight=_in_flight(draw.load)))
    most = sum(cached(_with_answers(timed, requests))[::2])
    tokens = sum(len(each.prompt_token_ids) for each in requests)
    facts = replace(
        facts,
        least_hit_rate=least / tokens,
        most_hit_rate=most / tokens,
        sources=tuple(prompt_number(turn.request) for turn in timed),
    )
    return PlannedLoad(
        workload=Workload(requests=planned, facts=facts),
        calls=tuple(map(_call, planned, timed)),
        warmup=tuple(warm),
        warmup_calls=tuple(map(_call, warm, before)),
    )


def _with_answers(
    timed: Sequence[_Turn], requests: Sequence[PlannedRequest]
) -> list[tuple[int, ...]]:
    """Each prompt, and behind it what the cache holds where the answer is the logged one.

    The next turn's prompt begins with both.
    """
    following: dict[tuple[int, int], tuple[int, ...]] = {}
    backwards: list[tuple[int, ...]] = []
    for turn, each in zip(reversed(timed), reversed(requests), strict=True):
        prompt, key = each.prompt_token_ids, (turn.again, turn.group)
        after = following.get(key, ())
        is_next = after[: len(prompt)] == prompt
        backwards += [after[: len(prompt) + each.max_tokens] if is_next else prompt, prompt]
        following[key] = prompt
    return backwards[::-1]


class _Turn(NamedTuple):
    """A request of the play. ``again`` counts how often it was sent before."""

    again: int
    place: int
    group: int
    request: LoggedRequest


def _drawn(sample: Sequence[SampledRequest], label: str) -> list[list[SampledRequest]]:
    """The groups in random order, the same on every machine."""
    groups: dict[int, list[SampledRequest]] = {}
    for each in sample:
        groups.setdefault(each.group, []).append(each)
    order = seeded(f"log/{label}").permutation(len(groups))
    rows = list(groups.values())
    return [rows[at] for at in order]


def _dealt(
    groups: Sequence[Sequence[SampledRequest]], count: int
) -> tuple[list[_Turn], list[_Turn]]:
    """The first ``count`` requests in the log's order, and the first ones of other groups.

    A log that is too short for that is played again, with another mark in the questions.
    """
    timed: list[_Turn] = []
    used = 0
    while len(timed) < count:
        again, at = divmod(used, len(groups))
        timed += [_turn(each, again) for each in groups[at][: count - len(timed)]]
        used += 1
    rest = [
        _turn(groups[at % len(groups)][0], at // len(groups))
        for at in range(used, used + len(groups))
    ]
    return sorted(timed, key=lambda turn: turn[:2]), rest


def _in_flight(point: Load) -> int:
    """Requests that are sent before the answer to one is there: at a rate, those of two seconds."""
    return math.ceil(2 * point.value) if point.is_open else point.slots


def _apart(timed: Sequence[_Turn], distance: int) -> list[_Turn]:
    """The log's order, but ``distance`` requests between two of a group as far as others are left.

    Nobody asks again before the answer is there; a sample's next turn would follow too soon.
    """
    waiting, order = list(timed), list[_Turn]()
    last: dict[tuple[int, int], int] = {}
    while waiting:
        ready = (
            at
            for at, turn in enumerate(waiting)
            if len(order) - last.get((turn.again, turn.group), -distance) >= distance
        )
        turn = waiting.pop(next(ready, 0))
        last[turn.again, turn.group] = len(order)
        order.append(turn)
    return order


def _turn(each: SampledRequest, again: int) -> _Turn:
    return _Turn(again=again, place=each.place, group=each.group, request=each.request)


def _warmup(timed: Sequence[_Turn], rest: Sequence[_Turn], count: int) -> list[_Turn]:
    """``count`` requests of ``rest``, those first whose beginning several groups share."""
    by_head: dict[object, _Turn] = {}
    for each in rest:
        by_head.setdefault(_head(each), each)
    sharing = Counter(head for head, _ in {(_head(each), each.group) for each in (*timed, *rest)})
    uses = Counter(map(_head, timed))
    shared = [head for head, _ in uses.most_common() if sharing[head] > 1][:_MOST_HEADS]
    heads = [by_head[head] for head in shared if head in by_head]
    used = {each.place for each in heads}
    return [*heads, *(each for each in rest if each.place not in used)][: max(count, len(heads))]


def _head(each: _Turn) -> object:
    """What a prompt begins with: its system prompt and tools, or its first words."""
    request = each.request
    if request.messages is not None:
        return beginning(request)
    return (request.prompt or "")[:200] or (request.prompt_token_ids or ())[:64]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Play:
    """How the log's requests become those of one play."""

    encoder: PromptEncoder
    mark: str
    lengths: Sequence[int]

    def plan(self, turns: Sequence[_Turn]) -> list[PlannedRequest]:
        """The prompts as token ids, each with the length of its answer."""
        marked = [self._marked(turn) for turn in turns]
        planned = []
        for index, (turn, ids) in enumerate(zip(turns, self.encoder.ids_many(marked), strict=True)):
            tokens = self._answer_tokens(turn)
            if isinstance(ids, TemplateProblem) or not tokens:
                raise UsageError(
                    f"{turn.request.place} cannot be sent: {ids if tokens else 'no length'}"
                )
            planned.append(
                PlannedRequest(index=index, prompt_token_ids=tuple(ids.tolist()), max_tokens=tokens)
            )
        return planned

    def _answer_tokens(self, turn: _Turn) -> int | None:
        """As long as logged, else as a measured answer but not longer than the request allows."""
        if turn.request.output_tokens is not None or not self.lengths:
            return turn.request.output_tokens
        measured = self.lengths[(turn.place + turn.again) % len(self.lengths)]
        return min(measured, turn.request.max_tokens or measured)

    def _marked(self, turn: _Turn) -> LoggedRequest:
        request, again = turn.request, f"[{turn.again}] " if turn.again else ""
        mark = self.mark
        if request.messages is None:
            mark += again
        elif again:
            messages = list(request.messages)
            roles = [message.get("role") for message in messages]
            at = roles.index("user") if "user" in roles else -1
            messages[at] = marked_message(messages[at], again)
            request = replace(request, messages=tuple(messages))
        return marked(request, mark, lambda text: self.encoder.encode(text).tolist())


def _call(planned: PlannedRequest, turn: _Turn) -> CompletionCall:
    """The planned request with the sampling of the logged one."""
    call = to_call(planned)
    own = {name: value for name, value in turn.request.sampling.items() if name in SENT}
    temperature = float(own.pop("temperature", call.temperature))
    return replace(call, temperature=temperature, extra={**call.extra, **own})


def logged_call(request: LoggedRequest, output_tokens: int) -> CompletionCall:
    """The request with its tools, template arguments and other fields, greedy."""
    extra = {
        name: value for name, value in request.sampling.items() if name not in SAMPLER | SEVERAL
    }
    if request.messages is not None:
        extra["tools"] = [dict(tool) for tool in request.tools] or None
        extra["chat_template_kwargs"] = dict(request.chat_template_kwargs) or None
    extra["cache_salt"] = request.cache_salt
    return CompletionCall(
        prompt_token_ids=request.prompt_token_ids,
        prompt=request.prompt,
        messages=None if request.messages is None else tuple(map(_known, request.messages)),
        max_tokens=output_tokens,
        temperature=TEMPERATURE,
        ignore_eos=True,
        extra={name: value for name, value in extra.items() if value is not None},
    )


def marked(
    request: LoggedRequest, mark: str, encode: Callable[[str], Sequence[int]]
) -> LoggedRequest:
    """The request with ``mark`` before its prompt; ``encode`` makes token ids of it."""
    if request.messages is not None:
        messages = (marked_message(request.messages[0], mark), *request.messages[1:])
        return replace(request, messages=messages)
    if request.prompt is not None:
        return replace(request, prompt=mark + request.prompt)
    return replace(request, prompt_token_ids=(*encode(mark), *(request.prompt_token_ids or ())))


def marked_message(message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """The message with ``mark`` before its text."""
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": mark}, *content]}
    return {**message, "content": mark + (content or "")}


def _known(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name in _MESSAGE}


def unsent_fields(
    requests: Iterable[LoggedRequest], unsent: Collection[str] | None = None
) -> str | None:
    """One sentence that names the fields which are not sent again, and of how many requests.

    ``unsent`` None are all but the prompt's and the sampler's.
    """
    counts = Counter[str]()
    for request in requests:
        fields = {**request.sampling, "cache_salt": request.cache_salt}
        counts.update(
            name
            for name, value in fields.items()
            if (name not in SAMPLER if unsent is None else name in unsent)
            and value is not None
            and (name, value) not in _USUAL
        )
    if not counts:
        return None
    names = ", ".join(f"{name} of {plural(count, 'request')}" for name, count in counts.items())
    return finding("not-sent", f"fields of the log that are not sent: {names}")
