"""A log or a trace as prompts: its own, or synthetic ones that share what its hash ids say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from whet.core.bench_options import Form
from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.protocols import Observer
from whet.core.units import ns_to_s
from whet.load.lengths import LONGEST, Lengths, in_order
from whet.load.logged import SEVERAL, logged_call, unsent_fields
from whet.load.plan import PlannedLoad, Workload, cold_workload, describe_requests, plan_requests
from whet.load.sharing import TokenIds
from whet.load.sources.request import OUTPUT_LENGTHS, BenchRequest, Row, Target
from whet.load.synthetic import draw_of, ordinary_ids, require_memory, warmed, write_synthetic
from whet.load.texts import TextTokenizer, load_text_tokenizer, seeded
from whet.requests import LoggedRequest, LogReader, TokenCheck, describe_left_out, finding, media
from whet.requests.trace import Trace

_WARM_TOKENS: Final = 64
"""The least that a warm-up prompt has: any chat template leaves room for words in it."""


def _holds_hashes(trace: Trace) -> bool:
    """Whether rows say which blocks their prompts begin with."""
    return any(row.hash_ids for row in trace.rows)


def report_trace(request: BenchRequest, tokenizer: Path, observer: Observer) -> None:
    """Say what is played, at which rate, how many rows are not, and what is odd about them."""
    trace, arrivals = request.timeline, request.arrivals
    if trace is None or arrivals is None or arrivals.speed is None:
        return
    rate = request.rate_rps
    played_s = ns_to_s(trace.times_ns[-1]) / arrivals.speed
    pace = "all at once" if rate is None else f"{rate:.4g} requests a second for {played_s:.4g} s"
    form = trace.form
    if _holds_hashes(trace):
        form += f", {trace.block_size} tokens per hash id"
    observer.note(
        f"{trace.path} ({form}): {len(trace.rows)} requests, {pace}; {trace.left_out_text}"
    )
    for doubt in _doubts(trace, tokenizer):
        observer.warn(doubt)


def _doubts(trace: Trace, tokenizer: Path) -> Iterator[str]:
    """What is odd about the requests of a log, and what of them is not sent."""
    yield from trace.doubts
    if not trace.holds_prompts:
        return
    requests = trace.rows
    counter = load_text_tokenizer(tokenizer)
    yield from counter.encoder.count_doubts(requests)
    yield from filter(None, [unsent_fields(requests, SEVERAL)])
    if limits := sum(each.silent for each in requests):
        text = f"{plural(limits, 'request')} of {trace.path} do not say how long the answer was"
        yield finding("limits", f"{text}: max_tokens is generated")


def replay(request: BenchRequest, trace: Trace, target: Target, number: int) -> PlannedLoad:
    """The first ``request.requests`` rows in their order; synthetic parts are fresh for every run.

    Raises ``UsageError`` for a trace that is too short or too large for the memory that is free,
    and for rows that no request stands for.
    """
    rows = trace.rows[: request.requests]
    if len(rows) < request.requests:
        raise UsageError(
            f"{trace.path} has {len(rows)} requests and {request.requests} are asked for",
            fix="ask for fewer, or give a longer trace",
        )
    require_memory(sum(row.input_tokens or 0 for row in rows))
    if trace.holds_prompts:
        return _logged(request, trace, target, number)
    lengths = in_order(_pairs(trace, rows))
    if _holds_hashes(trace):
        load = _hashed(request, trace, rows, target, number)
        return warmed(load, request, lengths, target, number)
    return write_synthetic(request, lengths, target, number)


def _pairs(trace: Trace, rows: Sequence[LoggedRequest]) -> tuple[tuple[int, int], ...]:
    pairs = tuple((row.input_tokens or 0, row.output_bound or 0) for row in rows)
    for number, pair in enumerate(pairs, start=1):
        if not all(1 <= length <= LONGEST for length in pair):
            raise UsageError(
                f"{trace.path}, request {number}: {pair[0]:,} tokens in and {pair[1]:,} out "
                "cannot be sent",
                fix="remove the row",
            )
    return pairs


def _hashed(
    request: BenchRequest, trace: Trace, rows: Sequence[LoggedRequest], target: Target, number: int
) -> PlannedLoad:
    """Prompts of blocks that are equal where their hash ids are; what is left over is unique."""
    if request.form != "ids":
        raise UsageError("what hash ids share is exact in token ids alone", fix="leave out --form")
    blocks = _Blocks(trace, rows, ordinary_ids(target.tokenizer), f"{request.load.seed}/{number}")
    prompts = [blocks.prompt(row) for row in rows]
    outputs = [row.output_bound or 0 for row in rows]
    return PlannedLoad(
        workload=cold_workload(
            prompts, outputs, block_size=target.block_size, seed=request.load.seed
        )
    )


class _Blocks:
    """Writes the prompts of ``rows``, each once: a block of random tokens for each hash id.

    They are drawn as objects, so that equal tokens of all prompts are one number in memory. A block
    is held as long as a later prompt has it, too.
    """

    def __init__(
        self, trace: Trace, rows: Sequence[LoggedRequest], vocabulary: Sequence[int], label: str
    ) -> None:
        self._trace = trace
        self._to_come = Counter(name for row in rows for name in trace.whole_blocks(row))
        self._vocabulary = np.asarray(vocabulary, dtype=object)
        self._label = label
        self._tails = seeded(f"tails/{label}")
        self._blocks: dict[int, TokenIds] = {}

    def prompt(self, row: LoggedRequest) -> TokenIds:
        """Whole blocks by their ids, then fresh tokens up to the length."""
        length = row.input_tokens or 0
        ids = [token for name in self._trace.whole_blocks(row) for token in self._block(name)]
        return (*ids, *self._tails.choice(self._vocabulary, length - len(ids)).tolist())

    def _block(self, name: int) -> TokenIds:
        self._to_come[name] -= 1
        block = self._blocks.pop(name, None)
        if block is None:
            rng = seeded(f"block/{self._label}/{name}")
            block = tuple(rng.choice(self._vocabulary, self._trace.block_size).tolist())
        if self._to_come[name]:
            self._blocks[name] = block
        return block


def _logged(request: BenchRequest, trace: Trace, target: Target, number: int) -> PlannedLoad:
    """Prompts and chats as a log holds them, after a warm-up of others that are as long."""
    requests, tokenizer = trace.rows[: request.requests], load_text_tokenizer(target.tokenizer)
    known = [tokenizer.encoder.answer_tokens(each) or each.output_bound for each in requests]
    prompts = [_read(trace, i, each, tokenizer) for i, each in enumerate(requests, start=1)]
    outputs = _answer_lengths(request, trace, known, number)
    workload = cold_workload(prompts, outputs, block_size=target.block_size, seed=request.load.seed)
    load = PlannedLoad(workload=workload, calls=tuple(map(logged_call, requests, outputs)))
    alike = tuple((max(_WARM_TOKENS, len(ids)), n) for ids, n in zip(prompts, outputs, strict=True))
    request = replace(request, form=_form(requests[0]))
    return warmed(load, request, in_order(alike), target, number)


def _read(trace: Trace, number: int, request: LoggedRequest, tokenizer: TextTokenizer) -> TokenIds:
    """The ids that the server makes of a request."""
    if media(request):
        raise UsageError(
            f"{trace.path}, request {number}: a message has content that is not text, which cannot "
            "be counted",
            fix="remove the row",
        )
    return _ids(request, f"{trace.path}, request {number}", tokenizer)


def _ids(request: LoggedRequest, place: str, tokenizer: TextTokenizer) -> TokenIds:
    """The ids that the server makes of a request; ``place`` is for errors."""
    try:
        return tokenizer.request_ids(request)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def open_rows(request: BenchRequest, tokenizer: Path, observer: Observer) -> tuple[Row, ...]:
    """The usable rows of a log to draw from, measured once for all runs; none of another source.

    Messages are sent as a chat, and a prompt as it is. ``UsageError`` for a log with over 1% of
    broken lines, a chat that the template refuses (with its line), and where no row is left.
    """
    path = request.source
    if not isinstance(path, Path):
        return ()
    reader, rows, encoder = LogReader(path), list[Row](), load_text_tokenizer(tokenizer)
    counts = TokenCheck(encoder.encoder.encode)
    for each in reader:
        row = _row(each, encoder, request.outputs)
        if isinstance(row, str):
            reader.leave_out(row, each.place)
        else:
            rows.append(row)
            counts.add(each, len(row.prompt_token_ids))
    reader.refuse_textless()
    left_out = describe_left_out(reader.left_out())
    if not rows:
        raise UsageError(
            f"{path} holds no row that can be used ({left_out})",
            fix="give a log with text and answers, or the length of answers with --output-len",
        )
    observer.note(f"{path}: {len(rows)} rows can be used, left out: {left_out or 'none'}")
    unsent = unsent_fields((row.request for row in rows), SEVERAL)
    for doubt in filter(None, (*reader.check.doubts(), *counts.doubts(), unsent)):
        observer.warn(doubt)
    each_run = request.requests + request.load.num_warmups
    if each_run <= len(rows) < each_run * request.runs:
        observer.warn(
            f"{request.runs} runs need {each_run * request.runs} rows: later runs send rows again, "
            "and a prefix cache answers these faster"
        )
    return tuple(rows)


def _row(request: LoggedRequest, tokenizer: TextTokenizer, outputs: Lengths | None) -> Row | str:
    """The measured row, or the reason why it is left out; ``outputs`` replaces its length."""
    if request.prompt_token_ids is not None or media(request):
        return "images, sound or token ids in place of text"
    tokens = tokenizer.encoder.answer_tokens(request) if outputs is None else outputs.low
    if not tokens:
        return "no answer to take the length from"
    ids = _ids(request, request.place, tokenizer)
    if not ids or max(len(ids), tokens) > LONGEST:
        return "no token in it, or too long"
    return Row(request=request, prompt_token_ids=ids, output_tokens=tokens)


def draw_rows(request: BenchRequest, path: Path, target: Target, number: int) -> PlannedLoad:
    """Rows in random order that no earlier run has sent, while there are such.

    Some are the warm-up. The hit rate to expect counts what they have in common, not what an
    earlier run left.
    """
    rows, seed, draw = target.rows, request.load.seed, draw_of(request, target, number)
    each = draw.requests + draw.warmup
    if each > len(rows):
        raise UsageError(
            f"{path} has {len(rows)} rows that can be used",
            fix=f"{draw.requests} requests and {draw.warmup} of warm-up need {each}: lower "
            "--num-prompts or --num-warmups",
        )
    order = seeded(f"rows/{seed}").permutation(len(rows)).tolist()
    taken = [rows[order[(number * each + i) % len(rows)]] for i in range(each)]
    mixed = seeded(f"dataset/{seed}/{draw.load}/{draw.trial}").permutation(each)
    taken = [taken[i] for i in mixed]
    planned = plan_requests(
        [row.prompt_token_ids for row in taken],
        [row.output_tokens for row in taken],
        block_size=draw.block_size,
    )
    calls = tuple(logged_call(row.request, row.output_tokens) for row in taken)
    timed = planned[: draw.requests]
    facts = describe_requests(timed, block_size=draw.block_size, seed=seed)
    return PlannedLoad(
        workload=Workload(requests=timed, facts=facts),
        calls=calls[: draw.requests],
        warmup=planned[draw.requests :],
        warmup_calls=calls[draw.requests :],
    )


def _answer_lengths(
    request: BenchRequest, trace: Trace, known: Sequence[int | None], number: int
) -> list[int]:
    """The lengths that are known, drawn where one is not and ``outputs`` is given.

    ``UsageError`` where one is not known and none is given.
    """
    unknown = sum(tokens is None for tokens in known)
    if unknown and request.outputs is None:
        raise UsageError(
            f"{unknown} of the requests in {trace.path} do not say how long their answer was",
            fix="give --output-len for these",
        )
    rng = seeded(f"outputs/{request.load.seed}/{number}")
    drawn = (request.outputs or OUTPUT_LENGTHS).draw(rng, len(known)).tolist()
    return [other if own is None else own for own, other in zip(known, drawn, strict=True)]


def _form(request: LoggedRequest) -> Form:
    if request.messages is not None:
        return "chat"
    return "ids" if request.prompt is None else "text"
