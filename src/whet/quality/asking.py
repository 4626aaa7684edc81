"""Send completion requests to a server and read the replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from whet.client import Failure, post_many
from whet.core.protocols import Dialect, Progress

_PATH: Final = "/v1/completions"
_TIMEOUT_S: Final = 300.0
_BATCHES_PER_STEP: Final = 4
_NOT_A_NUMBER: Final = re.compile(r"not json compliant|\bnan\b", re.IGNORECASE)
_HTTP_ERRORS: Final = ("http_", "bad_json", "server_error")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEndpoint:
    """A server, the name of its model, and the number of concurrent requests.

    ``timeout_s`` bounds each request. ``counter_names`` are the engine's names of its counters and
    those of ``core.counters``; ``dialect`` is how it is asked for log-probabilities where that is
    not vLLM's form.
    """

    url: str
    model: str
    concurrency: int
    timeout_s: float = _TIMEOUT_S
    counter_names: tuple[tuple[str, str], ...] = ()
    dialect: Dialect | None = None


Reply = dict[str, Any] | Failure
Value = TypeVar("Value")
Read = Callable[[int, dict[str, Any]], Value]
"""Turns the reply to the body at an index into the value to keep."""


def ask(
    endpoint: ModelEndpoint,
    bodies: Sequence[Mapping[str, Any]],
    *,
    backwards: bool = False,
    progress: Progress | None = None,
) -> list[Reply]:
    """Return the JSON reply or failure of each body, in order; see ``ask_and_read``.

    ``backwards`` sends the last body first, so that other requests share a batch.
    """
    ordered = bodies[::-1] if backwards else bodies
    replies = ask_and_read(endpoint, ordered, lambda _, reply: reply, progress=progress)
    return replies[::-1] if backwards else replies


def ask_and_read(
    endpoint: ModelEndpoint,
    bodies: Sequence[Mapping[str, Any]],
    read: Read[Value],
    *,
    step: int | None = None,
    progress: Progress | None = None,
) -> list[Value | Failure]:
    """Return what ``read`` makes of each reply, or the failure, in order.

    At most ``step`` whole replies are in memory, by default four times the concurrency. A failed
    request is sent once more, alone, because a burst may have run out of memory. A reply that is
    not a number is not sent again: it would be as wrong beside other traffic. When a whole step
    gets no HTTP answer, the remaining requests fail with the same message unsent.
    """
    full = [{"model": endpoint.model, "stream": False, **body} for body in bodies]
    results: list[Value | Failure] = []
    step = step or endpoint.concurrency * _BATCHES_PER_STEP
    for start in range(0, len(full), step):
        results += _post(endpoint, full, range(start, min(start + step, len(full))), read)
        if progress is not None:
            progress(len(results), len(full))
        if all(_is_silence(reply) for reply in results[start:]):
            return results + results[-1:] * (len(full) - len(results))
    alone = replace(endpoint, concurrency=1)
    for index, reply in enumerate(results):
        if isinstance(reply, Failure) and not is_not_a_number(reply):
            results[index] = _post(alone, full, range(index, index + 1), read)[0]
            if _is_silence(results[index]):
                break
    return results


def is_not_a_number(reply: object) -> bool:
    """Whether a request failed because the server computed NaN or infinity."""
    return isinstance(reply, Failure) and _NOT_A_NUMBER.search(reply.detail) is not None


def _is_silence(reply: object) -> bool:
    """Whether there was no HTTP answer: a timeout, a closed or refused connection."""
    return isinstance(reply, Failure) and not reply.error.startswith(_HTTP_ERRORS)


def _post(
    endpoint: ModelEndpoint, bodies: Sequence[dict[str, Any]], part: range, read: Read[Value]
) -> list[Value | Failure]:
    plain, own = bodies[part.start : part.stop], endpoint.dialect
    own = own if own is not None and all(map(own.asks_natively, plain)) else None
    replies = post_many(
        endpoint.url,
        _PATH if own is None else own.path,
        plain if own is None else list(map(own.request, plain)),
        concurrency=endpoint.concurrency,
        timeout_s=endpoint.timeout_s,
    )
    return [
        reply
        if isinstance(reply, Failure)
        else read(index, reply if own is None else own.reply(reply))
        for index, reply in zip(part, replies, strict=True)
    ]


def first_choice(reply: Reply) -> dict[str, Any]:
    """Return the first choice of a completion; empty for a failure or a reply without one."""
    choices = [] if isinstance(reply, Failure) else reply.get("choices") or []
    return choices[0] if choices else {}


def describe(failure: Failure) -> str:
    """Return a failure in words short enough for a reason."""
    return f"{failure.error}: {failure.detail}"[:200] if failure.detail else failure.error


def describe_missing(failures: Sequence[str], total: int, what: str) -> str | None:
    """Return "2 of 9 ``what`` (the first reason)", or None without failures."""
    return f"{len(failures)} of {total} {what} ({failures[0]})" if failures else None
