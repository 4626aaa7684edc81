"""Held-out documents from a request log or JSONL, tasks from JSONL, and both as token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from whet.checkpoint.chat import ChatTemplate, TemplateProblem
from whet.checkpoint.thinking import Thinking, find_thinking, thinking_off
from whet.checkpoint.tokenizer import load_tokenizer
from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.outside import read_text
from whet.core.spec import problem_words
from whet.quality.scoring import SCORERS
from whet.requests import LoggedRequest, LogReader, document_text, media, plain_messages

Ids = tuple[int, ...]
Json = Mapping[str, Any]


class Message(BaseModel, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class Task(BaseModel, frozen=True):
    """One question with a known answer, in the form that ``scorer`` takes.

    It is a chat or a plain ``prompt``. ``chat_template_kwargs`` replace the gate's, key by key.
    ``chance`` is the probability that a guess is right; without it the task's best constant answer
    is the chance level.
    """

    id: str
    task: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)] | None = None
    prompt: Annotated[str, Field(min_length=1)] | None = None
    expected: Any
    scorer: str
    max_tokens: Annotated[int, Field(ge=1)] = 256
    chat_template_kwargs: dict[str, Any] = {}
    chance: Annotated[float, Field(ge=0, lt=1)] | None = None

    @property
    def plain(self) -> list[Json]:
        """The messages as a chat template takes them."""
        return [message.model_dump() for message in self.messages or ()]

    @property
    def question(self) -> str:
        """The text that is answered: the prompt, or the last message."""
        return self.prompt or self.plain[-1]["content"]

    @model_validator(mode="after")
    def _known_scorer(self) -> Task:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("give either messages or prompt")
        if self.scorer not in SCORERS:
            near = did_you_mean(self.scorer, SCORERS)
            raise ValueError(f"unknown scorer {self.scorer!r}{near} (known: {', '.join(SCORERS)})")
        wrong = SCORERS[self.scorer].refuse(self.expected)
        if wrong is not None:
            raise ValueError(f"'expected' does not suit scorer {self.scorer}: {wrong}")
        return self


def load_documents(path: Path, limit: int) -> list[LoggedRequest]:
    """At most ``limit`` documents, spread evenly over the file, so that no kind of text is cut off.

    The file is a request log, or has lines with "messages" or "text". Requests with token ids
    alone, and those with images or sound, are left out: a text cannot be scored for them. Raises
    ``UsageError`` for a log that cannot be read or has over 1% of broken lines.
    """
    reader = LogReader(path, documents=True)
    count = sum(map(_can_score, reader))
    reader.refuse_textless()
    if not count:
        raise UsageError(
            f"{path} holds no held-out text",
            fix="give lines with messages or text, not token ids, images or sound",
        )
    size = min(limit, count)
    chosen = {index * count // size for index in range(size)}
    usable = enumerate(filter(_can_score, reader))
    return [request for index, request in usable if index in chosen]


def _can_score(request: LoggedRequest) -> bool:
    return request.prompt_token_ids is None and not media(request)


def load_tasks(path: Path, limit: int, *, chats: bool = True) -> list[Task]:
    """At most ``limit`` tasks, taken in turn from each kind, so that no kind is cut off.

    Without ``chats`` those with messages are left out.

    Raises ``UsageError`` naming the line that cannot be used, or an id that occurs twice: answers
    are paired with the baseline's by id.
    """
    kinds: dict[str, list[Task]] = {}
    ids: set[str] = set()
    for task in _read_tasks(path):
        if task.id in ids:
            raise UsageError(
                f"{path}: the task id {task.id!r} occurs twice", fix="give every task its own id"
            )
        ids.add(task.id)
        if chats or task.messages is None:
            kinds.setdefault(task.task, []).append(task)
    turns = chain.from_iterable(zip_longest(*kinds.values()))
    return [task for task in turns if task is not None][:limit]


def _read_tasks(path: Path) -> Iterator[Task]:
    try:
        lines = list(enumerate(read_text(path).split("\n"), start=1))
    except FileNotFoundError as error:
        raise UsageError(
            f"no tasks at {path}", fix="correct the path or leave the key out"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"the tasks at {path} cannot be read: {error}") from error
    if not (rows := [(number, line) for number, line in lines if line.strip()]):
        raise UsageError(f"{path} holds no tasks", fix="write one JSON object a line")
    for number, line in rows:
        try:
            yield Task.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{path} line {number}: {key and f'{key}: '}{problem_words(first)}",
                fix="correct that line",
            ) from error


class Encoder:
    """Renders and encodes. Text is rendered first and encoded without added specials after, because
    a chat template writes its own."""

    def __init__(self, folder: Path, variables: Mapping[str, Any] | None = None) -> None:
        """Load the tokenizer; ``CheckpointError`` if the folder has none that can be read.

        ``variables`` are handed to the chat template. Thinking is off unless they decide it.
        """
        self._tokenizer = load_tokenizer(folder)
        template = ChatTemplate(self._tokenizer, variables=variables)
        self.thinking_off = thinking_off(template.source, template.variables)
        self._template = template.with_variables(self.thinking_off)
        self.chats = bool(template.source)
        """Whether there is a chat template; chats are plain text without one."""

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return len(self._tokenizer)

    @property
    def variables(self) -> Mapping[str, Any]:
        """The variables that the chat template is given."""
        return self._template.variables

    def document(self, request: LoggedRequest) -> Ids:
        """A whole document: a chat without an opening for one more turn, or plain text."""
        if request.messages is None or not self.chats:
            return tuple(self._tokenizer.encode(document_text(request)))
        messages = plain_messages(request)
        return self._ids(self._chat(messages, {}, answered=True, tools=request.tools))

    def task(self, task: Task) -> Ids:
        """A question up to where the assistant speaks, or a plain prompt."""
        if task.prompt is not None:
            return tuple(self._tokenizer.encode(task.prompt))
        return self._ids(self._chat(task.plain, task.chat_template_kwargs))

    def thinking(self, task: Task, tokens: int) -> Thinking | None:
        """How the model reasons, in at most ``tokens``, before it answers; None if it does not."""
        if task.prompt is not None:
            return None
        own = task.chat_template_kwargs
        prompt = self._chat(task.plain, own)
        variables, special = {**self.variables, **own}, self._tokenizer.all_special_tokens
        thinking = find_thinking(self._template.source, prompt, variables, special)
        return None if thinking is None else replace(thinking, tokens=tokens)

    def _ids(self, text: str) -> Ids:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _chat(self, messages: Sequence[Json], own: Mapping[str, Any], **more: Any) -> str:
        keys = ("role", "content", "tool_calls")
        plain = [{key: each[key] for key in keys if key in each} for each in messages]
        try:
            return self._template.chat(plain, variables=own, **more)
        except TemplateProblem as problem:
            raise UsageError(
                f"{problem}, whose roles are {[message['role'] for message in plain]}",
                fix="correct the roles in "
                "the data file, or set quality.chat_template_kwargs to the variables that the "
                "template needs",
            ) from problem


def identity(documents: Sequence[Ids], prompts: Sequence[Ids], tasks: Sequence[Task]) -> str:
    """Hash all questions, as token ids; records with different hashes are not comparable."""
    # The template's variables are in the token ids already, and a chance level asks nothing.
    unasked = {"chat_template_kwargs", "chance"}
    questions = [
        task.model_dump(
            mode="json", exclude=unasked | {"prompt" if task.prompt is None else "messages"}
        )
        for task in tasks
    ]
    data = json.dumps([documents, prompts, questions], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()
