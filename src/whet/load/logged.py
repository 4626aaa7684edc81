"""Requests of a user's own log as the traffic of a trial, as token ids.

Every trial plays whole conversations of the log's load part, drawn anew. Each prompt of a play
begins with a mark such as ``[b8-t0]``, so that a prefix cache answers from requests of the same
play alone: one server is sent several plays, and some conversations twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.checkpoint.chat import TemplateProblem
from whet.checkpoint.encoder import PromptEncoder
from whet.client import CompletionCall
from whet.core.errors import UsageError
from whet.core.records import PlannedRequest
from whet.core.request_log import LoggedRequest
from whet.core.request_log.sample import SampledRequest
from whet.load.plan import Draw, Workload, describe_requests, to_call
from whet.load.sharing import shared_tokens
from whet.load.texts import seeded

SENT: Final = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
     "repetition_penalty", "seed"}
)  # fmt: skip
"""Sampling parameters that are sent again; what binds an answer's form is not, for it is timed."""
_MOST_HEADS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedLoad:
    """Requests of a play and its warm-up, each with the calls that send them."""

    workload: Workload
    calls: tuple[CompletionCall, ...]
    warmup: tuple[PlannedRequest, ...]
    warmup_calls: tuple[CompletionCall, ...]


def build_logged(
    sample: Sequence[SampledRequest], encoder: PromptEncoder, *, draw: Draw, warmup: int
) -> LoggedLoad:
    """The requests of one trial: whole conversations until there are ``draw.requests``.

    ``warmup`` other requests come first, and one for each beginning that several conversations
    share. With 0 there is no warm-up. Raises ``UsageError`` where the sample has too few requests,
    or a request without a known answer length.
    """
    mark = f"[{draw.attempt}b{draw.batch_size:g}-t{draw.trial}] "
    conversations = _drawn(sample, f"{draw.batch_size}/{draw.trial}")
    timed, rest = _dealt(conversations, draw.requests)
    requests = _plan(timed, encoder, mark)
    before = _warmup(timed, rest, warmup) if warmup else []
    warm = _plan(before, encoder, mark)
    shared = shared_tokens(
        [each.prompt_token_ids for each in requests],
        warm=[each.prompt_token_ids for each in warm],
        block_size=draw.block_size,
    )
    planned = tuple(
        replace(each, shared_tokens=tokens, prefix_id="log" if tokens else None)
        for each, tokens in zip(requests, shared, strict=True)
    )
    facts = describe_requests(planned, block_size=draw.block_size, seed=0)
    return LoggedLoad(
        workload=Workload(requests=planned, facts=facts),
        calls=tuple(map(_call, planned, timed)),
        warmup=tuple(warm),
        warmup_calls=tuple(map(_call, warm, before)),
    )


def _drawn(sample: Sequence[SampledRequest], label: str) -> list[list[SampledRequest]]:
    """The conversations in random order, the same on every machine."""
    conversations: dict[int, list[SampledRequest]] = {}
    for each in sample:
        conversations.setdefault(each.conversation, []).append(each)
    order = seeded(f"log/{label}").permutation(len(conversations))
    rows = list(conversations.values())
    return [rows[at] for at in order]


def _dealt(
    conversations: Sequence[Sequence[SampledRequest]], count: int
) -> tuple[list[SampledRequest], list[SampledRequest]]:
    """The first ``count`` requests in the log's order, and the first ones of what is left."""
    timed: list[SampledRequest] = []
    used = 0
    for conversation in conversations:
        if len(timed) == count:
            break
        timed += conversation[: count - len(timed)]
        used += 1
    if len(timed) < count:
        raise UsageError(
            f"a trial sends {count} requests and the part of the log for the load has "
            f"{len(timed)}; give a longer log, or lower the load or load.requests_per_slot"
        )
    rest = [conversation[0] for conversation in conversations[used:]]
    return sorted(timed, key=lambda each: each.place), rest


def _warmup(
    timed: Sequence[SampledRequest], rest: Sequence[SampledRequest], count: int
) -> list[SampledRequest]:
    """``count`` requests of ``rest``, those first whose beginning many of ``timed`` share."""
    uses = Counter(map(_head, timed))
    by_head: dict[object, SampledRequest] = {}
    for each in rest:
        by_head.setdefault(_head(each), each)
    shared = [head for head, number in uses.most_common(_MOST_HEADS) if number > 1]
    heads = [by_head[head] for head in shared if head in by_head]
    used = {each.place for each in heads}
    return [*heads, *(each for each in rest if each.place not in used)][: max(count, len(heads))]


def _head(each: SampledRequest) -> object:
    """What a prompt begins with: its system prompt and tools, or its first words."""
    request = each.request
    if request.messages is not None:
        first = request.messages[0]
        return str((first.get("content"), request.tools) if first.get("role") == "system" else "")
    return (request.prompt or "")[:200] or (request.prompt_token_ids or ())[:64]


def _plan(
    requests: Sequence[SampledRequest], encoder: PromptEncoder, mark: str
) -> list[PlannedRequest]:
    marked = [_marked(each.request, mark, encoder) for each in requests]
    planned = []
    for index, (request, ids) in enumerate(zip(marked, encoder.ids_many(marked), strict=True)):
        if isinstance(ids, TemplateProblem) or not request.output_tokens:
            raise UsageError(
                f"{request.place} cannot be sent: {ids if request.output_tokens else 'no length'}"
            )
        planned.append(
            PlannedRequest(
                index=index,
                prompt_token_ids=tuple(ids.tolist()),
                max_tokens=request.output_tokens,
                prefix_id=None,
                shared_tokens=0,
            )
        )
    return planned


def _marked(request: LoggedRequest, mark: str, encoder: PromptEncoder) -> LoggedRequest:
    if request.prompt is not None:
        return replace(request, prompt=mark + request.prompt)
    if request.prompt_token_ids is not None:
        ids = (*encoder.encode(mark).tolist(), *request.prompt_token_ids)
        return replace(request, prompt_token_ids=ids)
    first, *others = request.messages or ()
    return replace(request, messages=(_marked_message(first, mark), *others))


def _marked_message(message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": mark}, *content]}
    return {**message, "content": mark + (content or "")}


def _call(planned: PlannedRequest, sampled: SampledRequest) -> CompletionCall:
    """The planned request with the sampling of the logged one."""
    call, own = to_call(planned), dict(_sampling(sampled.request))
    temperature = own.pop("temperature", call.temperature)
    return replace(call, temperature=float(temperature), extra={**call.extra, **own})


def _sampling(request: LoggedRequest) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in request.sampling.items() if name in SENT)
