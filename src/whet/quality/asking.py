"""The two questions that are put to a server: how likely is this text, and what follows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.client import Failure, post_many
from whet.core.protocols import Progress

_PATH = "/v1/completions"
_TIMEOUT_S = 300.0
_BATCHES_A_STEP = 4
_ANSWERED = ("http_", "bad_json", "server_error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A server, the name of its model, and how many requests it is given at a time."""

    url: str
    model: str
    concurrency: int


Reply = dict[str, Any] | Failure


def ask(
    peer: Peer, bodies: Sequence[Mapping[str, Any]], *, progress: Progress | None = None
) -> list[Reply]:
    """Every body's JSON reply or failure, in order; what failed is asked once more, one at a time.

    One at a time, because a burst that ran out of memory may well fit alone. A server that stopped
    answering at all is not asked further: what is left fails with the same words.
    """
    full = [{"model": peer.model, "stream": False, **body} for body in bodies]
    replies: list[Reply] = []
    step = peer.concurrency * _BATCHES_A_STEP
    for start in range(0, len(full), step):
        replies += _post(peer, full[start : start + step], peer.concurrency)
        if progress is not None:
            progress(len(replies), len(full))
        if all(_is_silence(reply) for reply in replies[start:]):
            return replies + replies[-1:] * (len(full) - len(replies))
    return _ask_failed_again(peer, full, replies)


def _ask_failed_again(
    peer: Peer, bodies: Sequence[dict[str, Any]], replies: Sequence[Reply]
) -> list[Reply]:
    mended = list(replies)
    for index, reply in enumerate(replies):
        if isinstance(reply, Failure):
            mended[index] = _post(peer, bodies[index : index + 1], 1)[0]
            if _is_silence(mended[index]):
                break
    return mended


def _is_silence(reply: Reply) -> bool:
    """No HTTP answer of any kind: a timeout, a closed or refused connection."""
    return isinstance(reply, Failure) and not reply.error.startswith(_ANSWERED)


def _post(peer: Peer, bodies: Sequence[dict[str, Any]], concurrency: int) -> list[Reply]:
    return post_many(peer.url, _PATH, bodies, concurrency=concurrency, timeout_s=_TIMEOUT_S)


def why(failure: Failure) -> str:
    """A failure in words short enough for a reason."""
    return f"{failure.error}: {failure.detail}"[:200] if failure.detail else failure.error
