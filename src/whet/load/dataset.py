"""Requests from a log of prompts or chats; lengths are those that the tokenizer counts.

Of a ShareGPT conversation the first question is sent as a plain prompt, as ``vllm bench serve``
does; messages are sent as a chat, and a prompt as it is. The output length is the one logged
(``usage`` or ``output_tokens``), or else that of the logged answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.format import plural
from whet.load.lengths import LONGEST
from whet.load.logged_call import SEVERAL, logged_call, unsent_fields
from whet.load.plan import Draw, PlannedLoad, Workload, describe_requests, plan_requests
from whet.load.texts import TextTokenizer, seeded
from whet.requests import (
    LeftOut,
    LoggedRequest,
    LogReader,
    count_doubt,
    describe_left_out,
    media,
    plain_messages,
)

_NO_ANSWER: Final = "no answer to take the length from"
_NO_TEXT: Final = "images, sound or token ids in place of text"


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """One usable row: its request, and the ids that a server reads."""

    request: LoggedRequest
    prompt_token_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """The usable rows of a file, in its order."""

    path: str
    rows: tuple[DatasetRow, ...]
    left_out: tuple[LeftOut, ...]
    doubts: tuple[str, ...] = ()


def read_dataset(
    path: Path,
    tokenizer: TextTokenizer,
    *,
    sharegpt: bool = True,
    output_tokens: int | None = None,
) -> Dataset:
    """Read and measure every row; ``sharegpt`` leaves out the rows that vllm bench leaves out.

    ``output_tokens`` replaces what the rows say, whatever their lower limit is. Raises
    ``UsageError`` for a log with over 1% of broken lines, a chat that the template refuses (with
    its line), and where no row is left.
    """
    if output_tokens is not None and output_tokens < 1:
        raise UsageError(f"output_tokens is {output_tokens}", fix="give at least 1")
    reader, rows, framed = LogReader(path), list[DatasetRow](), list[str]()
    for request in _first_questions(reader, framed):
        try:
            row = _read_row(request, tokenizer, output_tokens)
        except UsageError as error:
            raise UsageError(f"{request.place}: {error}") from error
        reason = row if isinstance(row, str) else _reason(row, sharegpt, output_tokens is not None)
        if reason is not None:
            reader.leave_out(reason, request.place)
        elif not isinstance(row, str):
            rows.append(row)
    reader.refuse_textless()
    left_out = reader.left_out()
    if not rows:
        raise UsageError(
            f"{path} holds no row that can be used ({describe_left_out(left_out)})",
            fix="widen the limits, or give a log with text and answers",
        )
    counted = count_doubt((row.request.prompt_tokens, len(row.prompt_token_ids)) for row in rows)
    unsent = unsent_fields((row.request for row in rows), SEVERAL)
    first = f"the first question alone is sent of {plural(len(framed), 'conversation')} with a "
    first = f"{first}system prompt or tools (first {framed[0]})" if framed else ""
    doubts = (*reader.check.doubts(), *filter(None, (counted, unsent, first)))
    return Dataset(path=str(path), rows=tuple(rows), left_out=left_out, doubts=doubts)


def build_dataset(rows: Sequence[DatasetRow], *, draw: Draw, seed: int) -> PlannedLoad:
    """The timed rows and the warm-up, in random order, anew for every (concurrency, trial).

    The hit rate to expect counts what they have in common, not what an earlier trial left.
    """
    rng = seeded(f"dataset/{seed}/{draw.load}/{draw.trial}")
    chosen = [rows[i] for i in rng.permutation(len(rows))[: draw.requests + draw.warmup]]
    prompts, outputs = [row.prompt_token_ids for row in chosen], [r.output_tokens for r in chosen]
    planned = plan_requests(prompts, outputs, block_size=draw.block_size)
    calls = tuple(logged_call(row.request, row.output_tokens) for row in chosen)
    timed = planned[: draw.requests]
    facts = describe_requests(timed, block_size=draw.block_size, seed=seed)
    return PlannedLoad(
        workload=Workload(requests=timed, facts=facts),
        calls=calls[: draw.requests],
        warmup=planned[draw.requests :],
        warmup_calls=calls[draw.requests :],
    )


def _first_questions(reader: LogReader, framed: list[str]) -> Iterator[LoggedRequest]:
    """The requests of a log; of each ShareGPT conversation only the first question's.

    ``framed`` gets the places of conversations that lose a system prompt or tools by that.
    """
    used = None
    for request in reader:
        if request.turn is None:
            yield request
            continue
        conversation = request.place.rpartition("#")[0]
        question = (request.messages or ({},))[-1]
        if conversation != used and question["role"] == "user" and question["content"]:
            used = conversation
            if request.tools or len(request.messages or ()) > 1:
                framed.append(conversation)
            yield replace(request, messages=None, tools=(), prompt=question["content"])


def _read_row(
    request: LoggedRequest, tokenizer: TextTokenizer, output_tokens: int | None
) -> DatasetRow | str:
    """The measured row, or the reason why it is left out."""
    if request.prompt_token_ids is not None or media(request):
        return _NO_TEXT
    if request.messages and request.output is None and request.messages[-1]["role"] == "assistant":
        answer = plain_messages(request, answer=False)[-1]["content"]
        request = replace(request, messages=request.messages[:-1], output=answer)
    if request.messages == ():
        return "no message before the answer"
    tokens = tokenizer.answer_tokens(request) if output_tokens is None else output_tokens
    if tokens is None:
        return _NO_ANSWER
    ids = tokenizer.request_ids(request)
    return DatasetRow(request=request, prompt_token_ids=ids, output_tokens=tokens)


def _reason(row: DatasetRow, sharegpt: bool, output_is_set: bool) -> str | None:
    """Why a row is left out: with ``sharegpt`` by ``is_valid_sequence`` of vllm bench."""
    least, longest, whole = (4, 1024, 2048) if sharegpt else (1, LONGEST, 2 * LONGEST)
    given, answer = len(row.prompt_token_ids), row.output_tokens
    reasons = {
        "a prompt that is too short": given < least,
        "an answer that is too short": answer < least and not output_is_set,
        "a prompt that is too long": given > longest,
        "too long in all": given + answer > whole,
    }
    return next((name for name, holds in reasons.items() if holds), None)
