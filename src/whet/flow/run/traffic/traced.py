"""The user's own log as traffic: its requests and times, at its own speed or another."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from whet.core.bench_options import LoadOptions
from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.load import Load
from whet.core.records.load import RateSearch
from whet.core.spec import LoadSpec
from whet.core.store import RunStore
from whet.core.units import ns_to_s
from whet.flow.run.plan import Plan, Recorder
from whet.load.arrivals import Arrivals
from whet.load.logged import marked, unsent_fields
from whet.load.plan import PlannedLoad
from whet.load.sources.request import BenchRequest, Target
from whet.load.sources.source import build_load
from whet.load.texts import TextTokenizer, load_text_tokenizer
from whet.requests import LoggedRequest
from whet.requests.trace import Trace, cut_trace, read_trace

_COVERED = 0.8
"""Share of ``load.seconds`` that a log has to cover: the last gap before its end is unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A request log, what it holds of its first ``load.seconds``, and the rate of these."""

    whole: Trace
    beginning: Trace
    rate: Load
    longest: Load
    """The highest rate at which the whole log takes ``load.seconds``."""


def read_log(load: LoadSpec) -> Log | None:
    """The log that ``load.trace`` names; ``UsageError`` where no load can be made of it."""
    if load.trace is None:
        return None
    return _read(load.trace, load.seconds, load.min_requests)


@lru_cache(maxsize=1)
def _read(path: Path, seconds: float, min_requests: int) -> Log:
    whole = read_trace(path)
    if len(whole.rows) == 1:
        raise UsageError(
            f"{path} has one request only", fix=f"give a log of at least {seconds:g} s"
        )
    covered_s = ns_to_s(whole.times_ns[-1])
    if covered_s < _COVERED * seconds:
        raise UsageError(
            f"{path} covers {covered_s:.3g} s and load.seconds is {seconds:g}: lower load.seconds "
            "or give a longer log"
        )
    silent = sum(row.output_bound is None for row in whole.rows)
    if silent:
        raise UsageError(
            f"{path} does not say how long the answer of {plural(silent, 'request')} was",
            fix="add usage.completion_tokens or max_tokens to these lines, or remove them",
        )
    beginning = cut_trace(whole, duration_s=seconds)
    if beginning.rate_rps is None or len(beginning.rows) < min_requests:
        raise UsageError(
            f"{path} has {plural(len(beginning.rows), 'request')} in its first {seconds:g} s and "
            f"load.min_requests is {min_requests}: raise load.seconds or lower load.min_requests"
        )
    return Log(
        whole=whole,
        beginning=beginning,
        rate=_rounded(beginning.rate_rps),
        longest=_rounded(max(beginning.rate_rps, len(whole.rows) / seconds)),
    )


def _rounded(rate_rps: float) -> Load:
    return Load.rate(float(f"{rate_rps:.3g}"))


def log_problems(load: LoadSpec, tokenizer: Path, longest: int) -> Iterator[str]:
    """Why the log's beginning cannot be sent to a server that holds ``longest`` tokens a request.

    ``UsageError`` for a log that cannot be read or turned into prompts.
    """
    log = read_log(load)
    if log is None:
        return
    target = Target(model="", tokenizer=tokenizer)
    sent = build_log_load(load, log.rate, target, play="", warmup=0)
    lengths = [len(each.prompt_token_ids) + each.max_tokens for each in sent.workload.requests]
    too_long = sum(length > longest for length in lengths)
    if too_long:
        yield (
            f"{too_long} of the {len(lengths)} requests of {load.trace} are longer than "
            f"max_model_len {longest:,} (the longest has {max(lengths):,} tokens): raise "
            "max_model_len or remove these lines"
        )


def store_points(plan: Plan, recorder: Recorder) -> None:
    """Say what the log holds, and store its rate for every variant."""
    load, observer = plan.spec.load, recorder.observer
    log = read_log(load)
    if log is None:
        return
    observer.note(
        f"{log.whole.path} ({log.whole.form}): {plural(len(log.beginning.rows), 'request')} in "
        f"{load.seconds:g} s, {log.rate}"
        + (f"; {log.whole.left_out_text}" if log.whole.left_out or log.whole.bad_lines else "")
    )
    rows = log.beginning.rows
    encoder = load_text_tokenizer(plan.tokenizer).encoder
    counted = encoder.count_doubts(rows) if log.whole.holds_prompts else ()
    for doubt in filter(None, (*log.whole.doubts, *counted, unsent_fields(rows))):
        observer.warn(doubt)
    for item in plan.resolved:
        store_log_rate(plan.spec.load, recorder.store, item.variant.name)


def store_log_rate(load: LoadSpec, store: RunStore, name: str) -> None:
    """Store the log's own rate as what a variant is measured at, if nothing is searched."""
    log = read_log(load)
    if log is not None and load.find is None:
        search = RateSearch(variant=name, tried=(), points=(log.rate,), log_rate=log.rate)
        store.put("rates", name, search)


def build_log_load(
    load: LoadSpec, rate: Load, target: Target, *, play: str, warmup: int
) -> PlannedLoad:
    """The log's beginning, played at such a speed that its rate is ``rate``.

    Synthetic prompts are drawn for each ``play`` anew. Prompts that the log holds begin with the
    play's name, so that a prefix cache answers from requests of the same play alone.
    """
    log = read_log(load)
    assert log is not None, "the caller has checked load.trace"
    tokenizer = load_text_tokenizer(target.tokenizer)
    part = log.beginning
    if rate != log.rate:
        part = cut_trace(log.whole, rows=load.requests(rate))
    part = replace(part, rows=tuple(_marked(row, f"[{play}] ", tokenizer) for row in part.rows))
    speed = 1.0 if rate == log.rate or part.rate_rps is None else rate.value / part.rate_rps
    request = BenchRequest(
        url="",
        requests=len(part.rows),
        load=LoadOptions(num_warmups=warmup, seed=zlib.crc32(play.encode())),
        source=part,
        arrivals=Arrivals(speed=speed),
    )
    return build_load(request, target, 0)


def _marked(row: LoggedRequest, mark: str, tokenizer: TextTokenizer) -> LoggedRequest:
    """The row's prompt behind a mark; as token ids with tools, which vLLM's chats refuse."""
    if not row.has_prompt:
        return row
    request = marked(replace(row, sampling={}, cache_salt=None), mark, tokenizer.content_ids)
    if not request.tools:
        return request
    ids = tokenizer.request_ids(request)
    return replace(request, messages=None, tools=(), prompt_token_ids=ids)
