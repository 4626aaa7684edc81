"""Requests from a file of prompts or chats; lengths are those that the tokenizer counts.

Three forms of row, one JSON object a line: ShareGPT's ``{"conversations": [{"from": "human",
"value": …}, {"from": "gpt", …}]}``, whose first question is sent as a plain prompt, as
``vllm bench serve`` does; ``{"messages": […]}``, sent as a chat; ``{"prompt": …}``, sent as it is.
The output length is the row's ``output_tokens``, or else that of its ``completion`` or its answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from whet.client import CompletionCall
from whet.core.errors import UsageError
from whet.core.records import PlannedRequest
from whet.load.plan import TEMPERATURE, Draw, Workload, describe_requests
from whet.load.sharing import shared_tokens
from whet.load.texts import TextTokenizer, seeded

FORMS: Final = ("conversations", "messages", "prompt")
_ASKS: Final = ("human", "user")
_ANSWERS: Final = ("gpt", "chatgpt", "assistant")


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthLimits:
    """Which rows are left out; the defaults are ``is_valid_sequence``'s of vllm bench."""

    min_input_tokens: int = 4
    min_output_tokens: int = 4
    max_input_tokens: int = 1024
    max_total_tokens: int = 2048

    def __post_init__(self) -> None:
        """Refuse limits that no request can keep."""
        least = self.min_input_tokens + self.min_output_tokens
        if min(self.min_input_tokens, self.min_output_tokens) < 1:
            raise UsageError("a lower limit on tokens must be at least 1")
        if self.max_input_tokens < self.min_input_tokens or self.max_total_tokens < least:
            raise UsageError(
                "an upper limit on tokens is lower than the lower limit; raise the upper limit"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """How many rows are not used, and why; each counts under the first reason that holds."""

    no_answer: int
    short_input: int
    short_output: int
    long_input: int
    long_total: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(count for count, _ in self._reasons())

    def __str__(self) -> str:
        """Those that occur, in words."""
        return ", ".join(f"{count} {why}" for count, why in self._reasons() if count) or "none"

    def _reasons(self) -> tuple[tuple[int, str], ...]:
        return (
            (self.no_answer, "without an answer"),
            (self.short_input, "with a prompt that is too short"),
            (self.short_output, "with an answer that is too short"),
            (self.long_input, "with a prompt that is too long"),
            (self.long_total, "too long in all"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRow:
    """One usable row: its ``prompt`` or its ``messages``, and the ids that a server reads."""

    prompt: str | None
    messages: tuple[Mapping[str, str], ...] | None
    prompt_token_ids: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """The usable rows of a file, in its order."""

    path: str
    rows: tuple[DatasetRow, ...]
    left_out: LeftOut


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetLoad:
    """Requests as token ids, and the ``calls`` that send their text, side by side."""

    workload: Workload
    calls: tuple[CompletionCall, ...]


def read_dataset(
    path: Path,
    tokenizer: TextTokenizer,
    *,
    limits: LengthLimits | None = None,
    output_tokens: int | None = None,
) -> Dataset:
    """Read and measure every row. ``output_tokens`` replaces what the rows say.

    With ``output_tokens`` the lower limit on answers does not apply (as in vllm bench). Raises
    ``UsageError`` for a row that cannot be read, with its line, and where no row is left.
    """
    if output_tokens is not None and output_tokens < 1:
        raise UsageError(f"output_tokens is {output_tokens}; give at least 1")
    limits = limits or LengthLimits()
    rows: list[DatasetRow] = []
    reasons: Counter[str] = Counter()
    for where, row in _objects(path):
        try:
            read = _read_row(row, tokenizer, output_tokens)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        reason = "no_answer" if read is None else _reason(read, limits, output_tokens is not None)
        if read is not None and reason is None:
            rows.append(read)
        reasons[reason or "kept"] += 1
    left_out = LeftOut(**{name: reasons[name] for name in LeftOut.__dataclass_fields__})
    if not rows:
        why = f"it leaves out {left_out}" if reasons else "it is empty"
        raise UsageError(f"{path} holds no row that can be used: {why}; widen the limits")
    return Dataset(path=str(path), rows=tuple(rows), left_out=left_out)


def build_dataset(
    dataset: Dataset, *, draw: Draw, seed: int, ignore_eos: bool = True
) -> DatasetLoad:
    """``draw.requests`` rows in random order, none twice, anew for every (batch size, trial).

    Trials draw from the same rows: a server that keeps its prefix cache between them answers some
    from it, so reset the cache or hold the measured hit rate against the expected one, which counts
    what the rows of one trial have in common. ``ignore_eos`` False sends no field that only vLLM
    knows; answers may then end early.
    """
    if draw.requests < 1:
        raise UsageError("a trial needs at least 1 request")
    if draw.requests > len(dataset.rows):
        raise UsageError(
            f"{dataset.path} has {len(dataset.rows)} rows that can be used and {draw.requests} are "
            "asked for; a row sent twice would be answered from the cache, so ask for fewer"
        )
    rng = seeded(f"dataset/{seed}/{draw.batch_size}/{draw.trial}")
    chosen = [dataset.rows[i] for i in rng.permutation(len(dataset.rows))[: draw.requests]]
    requests = _plan(chosen, draw.block_size)
    facts = describe_requests(requests, block_size=draw.block_size, seed=seed)
    return DatasetLoad(
        workload=Workload(requests=requests, facts=facts),
        calls=tuple(_call(row, ignore_eos=ignore_eos) for row in chosen),
    )


def _objects(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return each row with its line. Only a line feed ends one: a text may contain U+2028."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the dataset {path} cannot be read: {error}") from error
    if text.lstrip().startswith("["):
        raise UsageError(
            f"{path} is one JSON array; write one object a line with: jq -c '.[]' {path}"
        )
    lines = [(f"{path}, line {i}", line) for i, line in enumerate(text.split("\n"), start=1)]
    return [(where, _object(line, where)) for where, line in lines if line.strip()]


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); write one JSON object a line") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not a JSON object; write one a line")
    return row


def _read_row(
    row: dict[str, Any], tokenizer: TextTokenizer, output_tokens: int | None
) -> DatasetRow | None:
    """The row measured; None where there is no question, or nothing to take the length from."""
    forms = [form for form in FORMS if form in row]
    if len(forms) != 1:
        raise UsageError(f"needs one of {', '.join(FORMS)} and has {' and '.join(forms) or 'none'}")
    stated = _stated_tokens(row, tokenizer)
    prompt, messages, answer = row.get("prompt"), None, None
    if "messages" in row:
        prompt, (messages, answer) = None, _chat(row["messages"])
    elif "conversations" in row:
        prompt, answer = _exchange(row["conversations"])
        if prompt is None:
            return None
    ids = tokenizer.chat_ids(messages) if messages else tokenizer.ids(_text(prompt, "prompt"))
    counted = None if answer is None else len(tokenizer.content_ids(answer))
    tokens = next((n for n in (output_tokens, stated, counted) if n is not None), None)
    if tokens is None:
        return None
    return DatasetRow(prompt=prompt, messages=messages, prompt_token_ids=ids, output_tokens=tokens)


def _stated_tokens(row: dict[str, Any], tokenizer: TextTokenizer) -> int | None:
    tokens, completion = row.get("output_tokens"), row.get("completion")
    if tokens is not None:
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise UsageError("output_tokens must be a whole number of at least 1")
        return tokens
    if completion is None:
        return None
    return len(tokenizer.content_ids(_text(completion, "completion", empty=True)))


def _chat(messages: Any) -> tuple[tuple[Mapping[str, str], ...], str | None]:
    """What is asked, and the answer where the chat ends in one."""
    turns = _turns(messages, "messages", "role", "content")
    answer = turns.pop()[1] if turns and turns[-1][0] == "assistant" else None
    if not turns:
        raise UsageError("messages needs at least one message before the answer")
    return tuple({"role": role, "content": text} for role, text in turns), answer


def _exchange(conversations: Any) -> tuple[str | None, str | None]:
    """The first question that the next turn answers; ShareGPT's rows often begin with a rest."""
    turns = _turns(conversations, "conversations", "from", "value")
    for (who, text), (next_who, next_text) in pairwise(turns):
        if who in _ASKS and next_who in _ANSWERS and text:
            return text, next_text
    return next((text for who, text in turns if who in _ASKS and text), None), None


def _turns(turns: Any, name: str, who: str, what: str) -> list[tuple[str, str]]:
    if not isinstance(turns, list):
        raise UsageError(f"{name} must be a list")
    pairs = []
    for turn in turns:
        speaker = turn.get(who) if isinstance(turn, dict) else None
        if not isinstance(speaker, str):
            raise UsageError(f'every turn of {name} needs a "{who}" that is text')
        pairs.append((speaker, _text(turn.get(what), what, empty=True)))
    return pairs


def _text(value: Any, name: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise UsageError(f"{name} must be text{'' if empty else ' that is not empty'}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} holds half a surrogate pair; write the text as UTF-8") from error
    return value


def _reason(row: DatasetRow, limits: LengthLimits, output_is_set: bool) -> str | None:
    """Why a row is left out, as the name of a field of ``LeftOut``."""
    given, answer = len(row.prompt_token_ids), row.output_tokens
    reasons = {
        "short_input": given < limits.min_input_tokens,
        "short_output": answer < limits.min_output_tokens and not output_is_set,
        "long_input": given > limits.max_input_tokens,
        "long_total": given + answer > limits.max_total_tokens,
    }
    return next((name for name, holds in reasons.items() if holds), None)


def _plan(rows: Sequence[DatasetRow], block_size: int) -> tuple[PlannedRequest, ...]:
    """Rows that begin alike have a ``prefix_id``, numbered as they first occur."""
    prompts = [row.prompt_token_ids for row in rows]
    shared = shared_tokens(prompts, warm=(), block_size=block_size)
    starts = [ids[:tokens] for ids, tokens in zip(prompts, shared, strict=True)]
    numbers = {start: number for number, start in enumerate(dict.fromkeys(filter(None, starts)))}
    return tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=row.prompt_token_ids,
            max_tokens=row.output_tokens,
            prefix_id=f"found-{numbers[start]}" if start else None,
            shared_tokens=len(start),
        )
        for index, (row, start) in enumerate(zip(rows, starts, strict=True))
    )


def _call(row: DatasetRow, *, ignore_eos: bool) -> CompletionCall:
    return CompletionCall(
        prompt=row.prompt,
        messages=row.messages,
        max_tokens=row.output_tokens,
        temperature=TEMPERATURE,
        ignore_eos=ignore_eos,
        extra={"skip_special_tokens": False} if ignore_eos else {},
    )
