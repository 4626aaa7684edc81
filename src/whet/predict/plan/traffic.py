"""The traffic to plan for: from a few numbers, or from a log or a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from whet.checkpoint.encoder import PromptEncoder, load_encoder
from whet.core.errors import CheckpointError, UsageError
from whet.core.format import plural
from whet.load.sharing import cached_tokens
from whet.predict.performance.simulator import Request
from whet.requests import LoggedRequest, finding
from whet.requests.trace import WHOLE, Reading, Trace, read_trace

_KEYS: Final = ("prompt", "output", "shared")
_LENGTH: Final = re.compile(r"\d{1,9}")
_SPREAD: Final = 0.5
_COUNT: Final = 512
_BLOCK: Final = 16
_FORM: Final = "write prompt=1024,output=128,shared=896, or name a file"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTraffic:
    """Requests in their order; ``rate`` is their own, where they have times.

    ``doubts`` are what is odd about them, one sentence each.
    """

    requests: tuple[Request, ...]
    rate: float | None
    doubts: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(each.prompt + each.output for each in self.requests)

    @property
    def text(self) -> str:
        """Means, in tokens."""
        count = len(self.requests)
        prompt = sum(each.prompt for each in self.requests) / count
        output = sum(each.output for each in self.requests) / count
        shared = sum(max(each.shared, each.cached) for each in self.requests) / count
        return f"{prompt:,.0f} prompt tokens ({shared:,.0f} shared), {output:,.0f} output tokens"


def read_traffic(
    text: str, reading: Reading = WHOLE, tokenizer: Path | None = None
) -> PlannedTraffic:
    """The traffic that ``--workload`` describes; a log without counts is read with ``tokenizer``.

    ``UsageError`` for what it cannot be.
    """
    is_file = False
    with suppress(OSError):  # a name that no file can have
        is_file = Path(text).is_file()
    if is_file:
        return _from_file(Path(text), reading, tokenizer)
    if "=" not in text:
        raise UsageError(f"--workload {text!r} is not a file", fix=_FORM)
    return _from_numbers(text)


def _from_numbers(text: str) -> PlannedTraffic:
    """Prompts of exactly that length; answers of half to one and a half times theirs.

    Answers of one length would end, and the next prompts begin, all at once.
    """
    values: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key.strip() not in {*_KEYS} - {*values} or _LENGTH.fullmatch(value.strip()) is None:
            raise UsageError(f"--workload {part.strip()!r} is not understood", fix=_FORM)
        values[key.strip()] = int(value)
    prompt, output, shared = (values.get(key, 0) for key in _KEYS)
    if prompt < 1 or output < 1:
        raise UsageError("--workload needs a prompt and an output of at least 1 token", fix=_FORM)
    if shared >= prompt:
        raise UsageError(
            f"--workload: {shared} shared tokens leave nothing of a prompt of {prompt}",
            fix="give fewer",
        )
    shares = np.linspace(1 - _SPREAD, 1 + _SPREAD, _COUNT)
    answers = np.random.default_rng(0).permutation(shares) * output
    outputs = (max(round(float(answer)), 1) for answer in answers)
    requests = tuple(Request(prompt=prompt, output=each, shared=shared) for each in outputs)
    return PlannedTraffic(requests=requests, rate=None)


def _from_file(path: Path, reading: Reading, tokenizer: Path | None) -> PlannedTraffic:
    """The rows of a log or a trace; blocks that begin an earlier row are taken to be cached.

    A row without lengths counts for the rate alone; a log without any is tokenized.
    """
    trace = read_trace(path, reading)
    rows = [row for row in trace.rows if row.input_tokens and _answer_is_counted(row)]
    encoder, doubts = None, trace.doubts
    if tokenizer is not None and trace.holds_prompts:
        with suppress(CheckpointError):  # counts need none
            encoder = load_encoder(tokenizer)
            doubts = (*doubts, *encoder.count_doubts(trace.rows))
    if not rows and encoder is not None:
        trace = read_trace(path, replace(reading, lengths_only=False))  # refuses redacted text
        if requests := tuple(_tokenized(trace, encoder)):
            lines = [trace.left_out_text] if trace.left_out or trace.bad_lines else []
            doubts = (*doubts, *lines)
            return PlannedTraffic(requests=requests, rate=trace.rate_rps, doubts=doubts)
    if not rows:
        raise UsageError(
            f"{path} says no lengths in tokens, which a plan needs",
            fix="give prompt=…,output=…, or a trace with them",
        )
    return PlannedTraffic(
        requests=tuple(_with_cached(trace, rows)),
        rate=trace.rate_rps,
        doubts=(*doubts, *_doubts(trace, len(rows))),
    )


def _tokenized(trace: Trace, encoder: PromptEncoder) -> Iterator[Request]:
    """Each request of a log as this tokenizer counts it, with what a prefix cache has of it."""
    rendered = zip(trace.rows, encoder.ids_many(trace.rows), strict=True)
    pairs = [(each, ids) for each, ids in rendered if isinstance(ids, np.ndarray) and len(ids)]
    hits = cached_tokens([ids for _, ids in pairs], block_size=_BLOCK)
    for (each, ids), cached in zip(pairs, hits, strict=True):
        if output := encoder.answer_tokens(each) or each.max_tokens:
            yield Request(prompt=len(ids), output=output, cached=cached)


def _answer_is_counted(row: LoggedRequest) -> bool:
    """Whether the answer's tokens are known; its limit stands for one that was not logged."""
    return bool(row.output_bound) and (row.output_tokens is not None or not row.output)


def _doubts(trace: Trace, used: int) -> Iterator[str]:
    """Rows that are left out, and what the lengths of a log, without its text, leave open."""
    if trace.left_out or trace.bad_lines:
        yield trace.left_out_text
    if not trace.holds_prompts:
        return
    if used < len(trace.rows):
        count = f"{len(trace.rows) - used:,} of {plural(len(trace.rows), 'request')}"
        text = f"{count} have no token counts: they are taken to be as long as the others"
        yield finding("counts", text)
    if limits := sum(row.silent for row in trace.rows):
        text = f"{plural(limits, 'request')} do not say how long the answer was"
        yield finding("limits", f"{text}: max_tokens is planned")
    yield (
        "tokens that prompts share are not counted in a request log: whet prompts finds them; "
        "plan with prompt=…,output=…,shared=…"
    )


def _with_cached(trace: Trace, rows: Sequence[LoggedRequest]) -> Iterator[Request]:
    """Each row with the tokens of the whole blocks that it and an earlier row begin with."""
    beginnings: set[tuple[int, ...]] = set()
    for row in rows:
        prompt, ids = row.input_tokens or 1, trace.whole_blocks(row)
        known = next((n for n in range(len(ids), 0, -1) if ids[:n] in beginnings), 0)
        beginnings.update(ids[:n] for n in range(known + 1, len(ids) + 1))
        cached = min(known * trace.block_size, prompt - 1)
        yield Request(prompt=prompt, output=row.output_bound or 1, cached=cached)
