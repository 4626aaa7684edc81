"""Requests from a log of prompts or chats; lengths are those that the tokenizer counts.

Messages are sent as a chat, and a prompt as it is. The output length is that of the log, or else
that of the logged answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
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
    output_tokens: int | None = None,
) -> Dataset:
    """Read and measure every request of a log.

    ``output_tokens`` replaces what the rows say. Raises
    ``UsageError`` for a log with over 1% of broken lines, a chat that the template refuses (with
    its line), and where no row is left.
    """
    if output_tokens is not None and output_tokens < 1:
        raise UsageError(f"output_tokens is {output_tokens}", fix="give at least 1")
    reader, rows = LogReader(path), list[DatasetRow]()
    for request in reader:
        try:
            row = _read_row(request, tokenizer, output_tokens)
        except UsageError as error:
            raise UsageError(f"{request.place}: {error}") from error
        if isinstance(row, str):
            reader.leave_out(row, request.place)
        else:
            rows.append(row)
    reader.refuse_textless()
    left_out = reader.left_out()
    if not rows:
        raise UsageError(
            f"{path} holds no row that can be used ({describe_left_out(left_out)})",
            fix="give a log with text and answers, or the length of answers with --output-len",
        )
    counted = count_doubt((row.request.prompt_tokens, len(row.prompt_token_ids)) for row in rows)
    unsent = unsent_fields((row.request for row in rows), SEVERAL)
    doubts = (*reader.check.doubts(), *filter(None, (counted, unsent)))
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


def _read_row(
    request: LoggedRequest, tokenizer: TextTokenizer, output_tokens: int | None
) -> DatasetRow | str:
    """The measured row, or the reason why it is left out."""
    if request.prompt_token_ids is not None or media(request):
        return _NO_TEXT
    tokens = tokenizer.answer_tokens(request) if output_tokens is None else output_tokens
    if not tokens:
        return _NO_ANSWER
    ids = tokenizer.request_ids(request)
    if not ids or max(len(ids), tokens) > LONGEST:
        return "no token in it, or too long"
    return DatasetRow(request=request, prompt_token_ids=ids, output_tokens=tokens)
