"""The user's own log as the traffic of a run: read once, divided, and written beside the run.

Its parts have no conversation in common: one calibrates the quantizer, one is the gate's text, one
the load's requests and one the confirmation's.
"""

from __future__ import annotations

import json
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
from whet.core.request_log import LoggedRequest, LogReader
from whet.core.request_log.sample import LogSample, Part, SampledRequest, sample_log
from whet.core.request_log.writer import request_line
from whet.core.spec import TrafficSpec
from whet.core.store import write_atomic

FILE: Final = "traffic.jsonl"
_NO_LENGTH: Final = "without an answer or its length"
_TOO_LONG: Final = "longer than the longest context"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficLog:
    """The requests of a log that can be sent to this model, and what was left out of the sample.

    ``left_out`` counts by reason; ``longest`` is the tokens of the longest prompt and its answer.
    """

    path: Path
    sample: LogSample
    left_out: tuple[tuple[str, int], ...]
    longest: int

    def describe(self) -> str:
        """One line for the console."""
        sample = self.sample
        words = f"{self.path.name}: {plural(sample.log_requests, 'request')}"
        if not sample.whole:
            words += f", of which {len(sample.requests):,} can be used"
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in self.left_out)
        return f"{words} (left out: {reasons})" if reasons else words


@lru_cache(maxsize=2)
def read_traffic(traffic: TrafficSpec, tokenizer: Path, max_tokens: int) -> TrafficLog:
    """Sample the log and render every request of the sample once.

    Prompts that do not fit ``max_tokens`` with their answer are left out, as are requests that the
    model's chat template refuses. Raises ``UsageError`` for a log that cannot be read, and where
    nothing of it can be sent.
    """
    reader = LogReader(traffic.log)
    sample = sample_log(reader, seed=traffic.seed)
    encoder = load_encoder(tokenizer)
    left_out = Counter({each.reason: each.count for each in reader.left_out()})
    usable: list[SampledRequest] = []
    longest = 0
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
            longest = max(longest, len(ids) + tokens)
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
        longest=longest,
    )


def _answer_tokens(request: LoggedRequest, encoder: PromptEncoder) -> int | None:
    """The answer's length: as the server counted it, else by this tokenizer."""
    if request.output_tokens is not None:
        return request.output_tokens
    text = (request.reasoning or "") + (request.output or "")
    return len(encoder.encode(text)) if text else request.max_tokens


def _reasons(left_out: Counter[str]) -> str:
    return "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def write_parts(log: TrafficLog, folder: Path) -> None:
    """Write the sample, and the parts for calibration and gate as text, once beside a run."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / FILE, (request_line(each.request) for each in log.sample.requests))
    for name, part in (("calibration.jsonl", "calibration"), ("heldout.jsonl", "gate")):
        _write(folder / name, _documents(log.sample, part))


def _documents(sample: LogSample, part: Part) -> Iterator[dict[str, Any]]:
    """The last request of each conversation with its answer: it holds the ones before."""
    last = {each.conversation: each.request for each in sample.part(part)}
    for request in last.values():
        if request.messages is None:
            yield {"text": (request.prompt or "") + (request.output or "")}
            continue
        answer = [] if request.output is None else [_answer(request.output)]
        yield {"messages": [*request.messages, *answer]}


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomic(path, "".join(lines).encode())


@lru_cache(maxsize=2)
def stored_sample(path: Path, seed: int) -> LogSample:
    """The sample as the run stored it: the same conversations and parts."""
    return sample_log(LogReader(path), seed=seed, capacity=1 << 30)
