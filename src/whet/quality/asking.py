"""The two questions that are put to a server: how likely is this text, and what follows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from whet.client import Failure, post_many
from whet.core.protocols import Progress

_PATH = "/v1/completions"
_TIMEOUT_S = 300.0
_BATCHES_A_STEP = 4
NOT_A_NUMBER = re.compile(r"not json compliant|\bnan\b", re.IGNORECASE)
"""In a failure's detail: the server has a figure and cannot write it as JSON."""
_ANSWERED = ("http_", "bad_json", "server_error")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEndpoint:
    """A server, the name of its model, and how many requests it is given at a time."""

    url: str
    model: str
    concurrency: int


Reply = dict[str, Any] | Failure
Value = TypeVar("Value")
Read = Callable[[int, dict[str, Any]], Value]
"""What is kept of the reply to the body at an index."""


def ask(
    endpoint: ModelEndpoint,
    bodies: Sequence[Mapping[str, Any]],
    *,
    progress: Progress | None = None,
) -> list[Reply]:
    """Every body's JSON reply or failure, in order; see ``ask_and_read``."""
    return ask_and_read(endpoint, bodies, lambda _, reply: reply, progress=progress)


def ask_and_read(
    endpoint: ModelEndpoint,
    bodies: Sequence[Mapping[str, Any]],
    read: Read[Value],
    *,
    step: int | None = None,
    progress: Progress | None = None,
) -> list[Value | Failure]:
    """What ``read`` keeps of every body's reply, or the failure, in order.

    At most ``step`` replies are held in full at a time, by default four times what is in flight.
    What failed is asked once more, one at a time, because a burst that ran out of memory may well
    fit alone. Not so a figure that is not a number: it is wrong beside others, where the traffic
    is, whatever it is alone. A server that stopped answering at all is not asked further: what is
    left fails with the same words.
    """
    full = [{"model": endpoint.model, "stream": False, **body} for body in bodies]
    results: list[Value | Failure] = []
    step = step or endpoint.concurrency * _BATCHES_A_STEP
    for start in range(0, len(full), step):
        results += _post(endpoint, full, range(start, min(start + step, len(full))), read)
        if progress is not None:
            progress(len(results), len(full))
        if all(_is_silence(reply) for reply in results[start:]):
            return results + results[-1:] * (len(full) - len(results))
    return _ask_failed_again(replace(endpoint, concurrency=1), full, results, read)


def _ask_failed_again(
    endpoint: ModelEndpoint,
    bodies: Sequence[dict[str, Any]],
    results: Sequence[Value | Failure],
    read: Read[Value],
) -> list[Value | Failure]:
    results_again = list(results)
    for index, reply in enumerate(results):
        if isinstance(reply, Failure) and not is_not_a_number(reply):
            results_again[index] = _post(endpoint, bodies, range(index, index + 1), read)[0]
            if _is_silence(results_again[index]):
                break
    return results_again


def is_not_a_number(reply: object) -> bool:
    """A failure because the server has a figure that is NaN or infinite: an answer, and wrong."""
    return isinstance(reply, Failure) and NOT_A_NUMBER.search(reply.detail) is not None


def _is_silence(reply: object) -> bool:
    """No HTTP answer of any kind: a timeout, a closed or refused connection."""
    return isinstance(reply, Failure) and not reply.error.startswith(_ANSWERED)


def _post(
    endpoint: ModelEndpoint, bodies: Sequence[dict[str, Any]], part: range, read: Read[Value]
) -> list[Value | Failure]:
    replies = post_many(
        endpoint.url,
        _PATH,
        bodies[part.start : part.stop],
        concurrency=endpoint.concurrency,
        timeout_s=_TIMEOUT_S,
    )
    return [
        reply if isinstance(reply, Failure) else read(index, reply)
        for index, reply in zip(part, replies, strict=True)
    ]


def why(failure: Failure) -> str:
    """A failure in words short enough for a reason."""
    return f"{failure.error}: {failure.detail}"[:200] if failure.detail else failure.error


def part_of(progress: Progress | None, offset: int, total: int) -> Progress | None:
    """A slice of the whole progress for one of its steps."""
    if progress is None:
        return None
    return lambda done, _: progress(offset + done, total)
