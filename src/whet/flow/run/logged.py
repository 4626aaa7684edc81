"""The user's own log as the traffic of a run: read once, divided, and written beside the run.

Its parts have no conversation in common: one calibrates the quantizer, one is the gate's text, one
the load's requests and one the confirmation's.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.chat import TemplateProblem
from whet.checkpoint.encoder import PromptEncoder, load_encoder
from whet.core.errors import UsageError
from whet.core.format import plural
from whet.core.load_point import load_words
from whet.core.request_log import LoggedRequest, LogReader, plain_messages
from whet.core.request_log.sample import PARTS, LogSample, Part, SampledRequest, sample_log
from whet.core.request_log.writer import request_line
from whet.core.spec import LoadSpec, TrafficSpec, WorkloadSpec
from whet.core.store import write_atomic

TRAFFIC: Final = "traffic.jsonl"
_NO_LENGTH: Final = "without an answer or its length"
_TOO_LONG: Final = "longer than the longest context"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficLog:
    """The requests of a log that can be sent to this model, and what was left out of the sample.

    ``left_out`` counts by reason; ``lengths`` are the tokens of prompt and answer, as the sample.
    """

    path: Path
    sample: LogSample
    left_out: tuple[tuple[str, int], ...]
    lengths: tuple[tuple[int, int], ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(map(sum, self.lengths))

    @property
    def p99(self) -> int:
        """The length that 99 in 100 requests do not exceed."""
        return _p99(map(sum, self.lengths))

    def workload(self) -> WorkloadSpec:
        """A workload with the log's lengths, for what is planned before anything is sent."""
        prompts, answers = zip(*self.lengths, strict=True)
        return WorkloadSpec(
            max_input_tokens=_p99(prompts),
            min_output_tokens=min(answers),
            max_output_tokens=_p99(answers),
            input_output_ratio=sum(prompts) / sum(answers),
        )

    def describe(self) -> str:
        """One line for the console."""
        sample = self.sample
        words = f"{self.path.name}: {plural(sample.log_requests, 'request')}"
        if not sample.whole:
            words += f", of which {len(sample.requests):,} can be used"
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in self.left_out)
        return f"{words} (left out: {reasons})" if reasons else words


@lru_cache(maxsize=2)
def read_traffic(
    traffic: TrafficSpec, tokenizer: Path, max_tokens: int, stored: Path
) -> TrafficLog:
    """Sample the log, or read the sample as ``stored`` beside a run, and render every request once.

    Prompts that do not fit ``max_tokens`` with their answer are left out, as are requests that the
    model's chat template refuses. Raises ``UsageError`` for a log that cannot be read, and where
    nothing of it can be sent.
    """
    reader = LogReader(stored if stored.exists() else traffic.log)
    sample = sample_log(reader, seed=traffic.seed)
    encoder = load_encoder(tokenizer)
    left_out = Counter({each.reason: each.count for each in reader.left_out()})
    usable: list[SampledRequest] = []
    lengths: list[tuple[int, int]] = []
    rendered = encoder.ids_many([each.request for each in sample.requests])
    for each, ids in zip(sample.requests, rendered, strict=True):
        tokens = _answer_tokens(each.request, encoder)
        if isinstance(ids, TemplateProblem):
            left_out[str(ids)] += 1
        elif not tokens:
            left_out[_NO_LENGTH] += 1
        elif len(ids) + tokens > max_tokens:
            left_out[_TOO_LONG] += 1
        else:
            lengths.append((len(ids), tokens))
            request = replace(each.request, output_tokens=tokens)
            usable.append(replace(each, request=request))
    if not usable:
        raise UsageError(
            f"{traffic.log} has no request that can be sent: {_reasons(left_out)}; give a log with "
            "answers, for a model of this kind"
        )
    return TrafficLog(
        path=traffic.log,
        sample=replace(sample, requests=tuple(usable)),
        left_out=tuple(left_out.items()),
        lengths=tuple(lengths),
    )


def _p99(values: Iterable[int]) -> int:
    row = sorted(values)
    return row[math.ceil(0.99 * len(row)) - 1]


def _answer_tokens(request: LoggedRequest, encoder: PromptEncoder) -> int | None:
    """The answer's length: as the server counted it, else by this tokenizer."""
    if request.output_tokens is not None:
        return request.output_tokens
    text = (request.reasoning or "") + (request.output or "")
    return len(encoder.encode(text)) if text else request.max_tokens


def _reasons(left_out: Counter[str]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def traffic_problems(log: TrafficLog, load: LoadSpec, longest: int) -> Iterator[str]:
    """Why the log's requests cannot be sent to servers that hold ``longest`` tokens a request."""
    if log.longest > longest:
        yield (
            f"the longest request of {log.path} has {log.longest:,} tokens with its answer and "
            f"max_model_len is {longest:,}: raise it, or take long requests out of the log"
        )
    point = max(load.points, default=1)
    needed = load.requests(point)
    parts: tuple[Part, ...] = ("load", "confirmation") if load.confirm else ("load",)
    for part in parts:
        has = len(log.sample.part(part))
        if has < needed:
            yield (
                f"a trial at {load_words(point)} sends {needed:,} requests and the {part} part of "
                f"{log.path} has {has:,}: give a log of {math.ceil(needed / PARTS[part]):,} "
                "requests or more, or lower the load or load.requests_per_slot"
            )
            return


def write_parts(log: TrafficLog, folder: Path) -> None:
    """Write the sample, and the parts for calibration and gate as text, once beside a run."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / TRAFFIC, (request_line(each.request) for each in log.sample.requests))
    _write(folder / "calibration.jsonl", _documents(log.sample, "calibration"))
    _write(folder / "heldout.jsonl", _documents(log.sample, "gate"))


def _documents(sample: LogSample, part: Part) -> Iterator[dict[str, Any]]:
    """The last request of each conversation with its answer: it holds the ones before."""
    last = {each.conversation: each.request for each in sample.part(part)}
    for request in last.values():
        if request.messages is None:
            yield {"text": (request.prompt or "") + (request.output or "")}
        else:
            yield {"messages": plain_messages(request)}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomic(path, "".join(lines).encode())


@lru_cache(maxsize=4)
def stored_part(path: Path, seed: int, part: Part) -> tuple[SampledRequest, ...]:
    """One part of the sample as the run stored it."""
    return sample_log(LogReader(path), seed=seed).part(part)
