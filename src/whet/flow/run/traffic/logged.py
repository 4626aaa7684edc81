"""The user's own log as the traffic of a run: read once, divided, and stored with the run.

Its parts have no conversation in common: one calibrates the quantizer, one is the gate's text, one
the load's requests and one the confirmation's.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from whet.checkpoint.chat import TemplateProblem, Variables
from whet.checkpoint.encoder import Ids, PromptEncoder, load_encoder
from whet.core.errors import UsageError
from whet.core.format import percent, plural
from whet.core.records.load import TrafficFacts
from whet.core.spec import LoadSpec, QualitySpec, TrafficSpec, WorkloadSpec
from whet.core.store import read_record, write_atomic
from whet.core.units import ns_to_s
from whet.data import write_inputs
from whet.load.logged import MARK_TOKENS, unsent_fields
from whet.load.sharing import ideal_hit_rate
from whet.quality import QualityPlan, tokens_needed
from whet.quality.verdicts import MIN_DOCUMENTS
from whet.requests import LoggedRequest, LogReader, TokenCheck, media, plain_messages
from whet.requests.records import request_line
from whet.requests.sample import (
    PARTS,
    LogSample,
    Part,
    SampledRequest,
    conversation_of,
    read_sample,
    sample_log,
)

TRAFFIC: Final = "traffic.jsonl"
TIMES: Final = "arrivals.json"
_NOTICE: Final = b"""This folder holds prompts and answers of a request log. Do not publish it.
"""
_MOST_TIMES: Final = 100_000
_FEWEST_TIMES: Final = 100
_TEXTS: Final[tuple[tuple[str, Part, int], ...]] = (
    ("calibration", "calibration", 32),
    ("heldout", "gate", MIN_DOCUMENTS),
)
"""Name, part and fewest documents of the texts that are made of the log."""
BLOCK: Final = 16
"""Tokens per block of the ideal prefix cache."""
_COPIES: Final = 300
"""Answers that are compared with their prompts."""
_GRAM: Final = 3
_NO_LENGTH: Final = "without an answer or its length"
_TOO_LONG: Final = "longer than the longest context"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficLog:
    """The requests of a log that can be sent to this model, and what was left out of the sample.

    ``left_out`` counts by reason; ``lengths`` are the tokens of prompt and answer, as the sample.
    ``doubts`` are what is odd about the requests. ``hit_rate`` is the share of the prompts' tokens
    that an endless prefix cache would answer.
    """

    path: Path
    sample: LogSample
    left_out: tuple[tuple[str, int], ...]
    lengths: tuple[tuple[int, int], ...]
    hit_rate: float
    doubts: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(map(sum, self.lengths))

    @property
    def p99(self) -> int:
        """The length that 99 in 100 requests do not exceed."""
        return p99_of(map(sum, self.lengths))

    @property
    def facts(self) -> TrafficFacts:
        """How many requests the sample has, how many are greedy, and the log's output."""
        requests = [each.request for each in self.sample.requests]
        rate, tokens = self.rate_rps, [each.output_tokens for each in requests]
        known = [each for each in tokens if each is not None]
        return TrafficFacts(
            requests=len(requests),
            greedy=sum(each.greedy for each in requests),
            output_tokens_per_s=rate * sum(known) / len(known) if rate and known else None,
        )

    @property
    def rate_rps(self) -> float | None:
        """Mean requests a second of the whole log; None where hardly any has a time."""
        times_ns = self.sample.times_ns
        if len(times_ns) < _FEWEST_TIMES or times_ns[0] == times_ns[-1]:
            return None
        return (len(times_ns) - 1) / ns_to_s(float(times_ns[-1] - times_ns[0]))

    def workload(self) -> WorkloadSpec:
        """A workload with the log's lengths, for what is planned before anything is sent."""
        prompts, answers = zip(*self.lengths, strict=True)
        return WorkloadSpec(
            max_input_tokens=p99_of(prompts),
            min_output_tokens=min(answers),
            max_output_tokens=p99_of(answers),
            input_output_ratio=sum(prompts) / sum(answers),
        )

    def describe(self) -> str:
        """One line for the console."""
        sample = self.sample
        words = f"{self.path.name}: {plural(sample.log_requests, 'request')}"
        if not sample.whole:
            words += f"; {len(sample.requests):,} are used"
        reasons = _reasons(dict(self.left_out))
        words = f"{words} (left out: {reasons})" if reasons else words
        return f"{words}; an ideal prefix cache answers {percent(self.hit_rate)} of their tokens"


@lru_cache(maxsize=2)
def read_traffic(
    traffic: TrafficSpec,
    tokenizer: Path,
    max_tokens: int,
    stored: Path | None,
    variables: Variables = (),
) -> TrafficLog:
    """Sample the log, or read the sample ``stored`` with a run, and render every request once.

    Prompts that do not fit ``max_tokens`` with their answer are left out, as are requests that the
    model's chat template refuses. Raises ``UsageError`` for a log that cannot be read, and where
    nothing of it can be sent. ``variables`` are for the chat template.
    """
    left_out: Counter[str] = Counter()
    doubts: tuple[str, ...] = ()
    if stored is None:
        sample, lines, doubts = take_sample(traffic.log, traffic.seed)
        left_out.update(dict(lines))
    else:
        sample = read_sample(LogReader(stored))
    encoder = load_encoder(tokenizer, variables=dict(variables))
    counts = TokenCheck(encoder.encode)
    usable: list[SampledRequest] = []
    lengths: list[tuple[int, int]] = []
    prompts: list[Ids] = []
    rendered = encoder.ids_many([each.request for each in sample.requests])
    for each, ids in zip(sample.requests, rendered, strict=True):
        tokens = _answer_tokens(each.request, encoder, traffic)
        if kinds := media(each.request):
            left_out[f"with {', '.join(sorted(kinds))}, which is not sent"] += 1
        elif isinstance(ids, TemplateProblem):
            left_out[str(ids)] += 1
        elif not tokens:
            left_out[_NO_LENGTH] += 1
        elif len(ids) + tokens > max_tokens:
            left_out[_TOO_LONG] += 1
        else:
            lengths.append((len(ids), tokens))
            prompts.append(ids)
            counts.add(each.request, len(ids))
            logged = tokens if traffic.answers == "logged" else None
            request = replace(each.request, output_tokens=logged)
            usable.append(replace(each, request=request))
    if not usable:
        raise UsageError(
            f"{traffic.log} has no request that can be sent: {_reasons(left_out)}",
            fix="give a log of "
            "another kind, or set traffic.answers to natural where it has no answers",
        )
    requests = [each.request for each in usable]
    return TrafficLog(
        path=traffic.log,
        sample=replace(sample, requests=tuple(usable)),
        left_out=tuple(left_out.items()),
        lengths=tuple(lengths),
        hit_rate=ideal_hit_rate(prompts, block_size=BLOCK),
        doubts=(*doubts, *counts.doubts(), *filter(None, [unsent_fields(requests)])),
    )


def copied_share(sample: LogSample, encoder: PromptEncoder) -> float | None:
    """Return the share of the answers' trigrams that are in their prompts; None without answers.

    Prompt lookup proposes what follows the last tokens elsewhere in the prompt (Saxena 2023).
    """
    with_text = [each.request for each in sample.requests if each.request.output]
    rows = with_text[:: max(1, len(with_text) // _COPIES)]
    inside = total = 0
    for request, ids in zip(rows, encoder.ids_many(rows), strict=True):
        if isinstance(ids, TemplateProblem):
            continue
        known = set(_grams(ids))
        answer = list(_grams(encoder.encode(request.output or "")))
        inside += sum(gram in known for gram in answer)
        total += len(answer)
    return inside / total if total else None


def _grams(ids: Ids) -> Iterator[tuple[int, ...]]:
    row = ids.tolist()
    return zip(*(row[at:] for at in range(_GRAM)), strict=False)


@lru_cache(maxsize=1)
def take_sample(
    log: Path, seed: int
) -> tuple[LogSample, tuple[tuple[str, int], ...], tuple[str, ...]]:
    """The sample of a log, how many lines it leaves out for each reason, and what is odd."""
    reader = LogReader(log)
    sample = sample_log(reader, seed=seed)
    reader.refuse_textless()
    reader.refuse_times()
    counts = tuple((each.reason, each.count) for each in reader.left_out())
    return sample, counts, tuple(reader.check.doubts())


def p99_of(values: Iterable[int]) -> int:
    """The value that 99 in 100 do not exceed."""
    row = sorted(values)
    return row[math.ceil(0.99 * len(row)) - 1]


def _answer_tokens(
    request: LoggedRequest, encoder: PromptEncoder, traffic: TrafficSpec
) -> int | None:
    """The answer's length as the server counted it, else by this tokenizer; its limit if natural.

    None where it is not known.
    """
    if traffic.answers == "natural":
        return request.max_tokens or traffic.max_output_tokens
    known = encoder.answer_tokens(request)
    return request.max_tokens if known is None else known


def _reasons(left_out: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def sample_problems(log: TrafficLog, load: LoadSpec, longest: int) -> Iterator[str]:
    """Why the log's requests cannot be sent to servers that hold ``longest`` tokens a request."""
    needed = log.longest + MARK_TOKENS
    if needed > longest:
        yield (
            f"the longest request of {log.path} needs {needed:,} tokens with its answer and "
            f"max_model_len is {longest:,}: raise it, or take long requests out of the log"
        )
    parts: tuple[Part, ...] = ("load", "confirmation") if load.confirm else ("load",)
    small = [part for part in parts if len(log.sample.part(part)) < load.min_requests]
    if small:
        least = max(math.ceil(load.min_requests / PARTS[part]) for part in parts)
        yield (
            f"a trial sends {load.min_requests:,} requests or more and the {small[0]} part of "
            f"{log.path} has {len(log.sample.part(small[0])):,}: give a log of {least:,} requests "
            "or more in many conversations, which no two parts share, or lower load.min_requests"
        )


def write_parts(log: TrafficLog, folder: Path) -> None:
    """Store the sample once with a run, its times, and the parts for calibration and gate.

    A part of too few conversations leaves the built-in text in its place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_atomic(folder / "PRIVATE.txt", _NOTICE)
    write_atomic(folder / TIMES, json.dumps(_busiest(log.sample.times_ns)))
    for name, part, least in _TEXTS:
        documents = list(_documents(log.sample, part))
        if len(documents) >= least:
            _write(folder / f"{name}.jsonl", documents)
    lines = (
        {**request_line(each.request), "session_id": f"{each.group:x}"}
        for each in log.sample.requests
    )
    _write(folder / TRAFFIC, lines)  # last: a resume takes it for the sign that all are there


def gate_tokens(quality: QualitySpec, log: TrafficLog, tokenizer: Path) -> int:
    """Tokens of the longest document or task of the gate, with its answer."""
    with TemporaryDirectory(prefix="whet-") as scratch:
        folder = Path(scratch)
        write_inputs(folder)
        write_parts(log, folder)
        return tokens_needed(
            QualityPlan(
                variant="",
                tokenizer=tokenizer,
                spec=quality,
                heldout=quality.heldout or folder / "heldout.jsonl",
                tasks=quality.tasks or folder / "tasks.jsonl",
                baseline=None,
                tolerances=(),
            )
        )


def _busiest(times_ns: Sequence[int]) -> list[int]:
    """At most 100,000 arrivals in a row, those that came in the shortest time."""
    times = np.asarray(times_ns, dtype=np.int64)
    if len(times) > _MOST_TIMES:
        lasting = times[_MOST_TIMES - 1 :] - times[: len(times) - _MOST_TIMES + 1]
        start = int(lasting.argmin())
        times = times[start : start + _MOST_TIMES]
    row: list[int] = (times - times[:1]).tolist()
    return row


def _documents(sample: LogSample, part: Part) -> Iterator[dict[str, Any]]:
    """The last request of each conversation with its answer: it holds the ones before."""
    last = {conversation_of(each.request): each.request for each in sample.part(part)}
    for request in last.values():
        if request.messages is None:
            yield {"text": (request.prompt or "") + (request.output or "")}
        else:
            line: dict[str, Any] = {"messages": plain_messages(request), "tools": request.tools}
            line |= {"chat_template_kwargs": request.chat_template_kwargs}
            yield {key: value for key, value in line.items() if value}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomic(path, "".join(lines))
    path.chmod(0o600)


@lru_cache(maxsize=4)
def stored_part(path: Path, part: Part) -> tuple[SampledRequest, ...]:
    """One part of the sample as the run stored it."""
    return read_sample(LogReader(path)).part(part)


@lru_cache(maxsize=1)
def stored_times(path: Path) -> tuple[int, ...]:
    """Arrivals of the log whose sample is at ``path``, in ns from the first; empty without any."""
    return tuple(read_record(path.parent / TIMES, list[int]))
