"""Documents and tasks as token ids, by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.checkpoint.chat import ChatTemplate, TemplateProblem
from whet.checkpoint.thinking import Thinking, find_thinking, thinking_off
from whet.checkpoint.tokenizer import load_tokenizer
from whet.core.errors import UsageError
from whet.quality.data import HeldoutDocument, Message, Task

Ids = tuple[int, ...]


class Encoder:
    """Renders and encodes. Text is rendered first and encoded without added specials after, because
    a chat template writes its own."""

    def __init__(self, folder: Path, variables: Mapping[str, Any] | None = None) -> None:
        """Load the tokenizer; ``CheckpointError`` if the folder has none that can be read.

        ``variables`` are handed to the chat template. Thinking is off unless they decide it.
        """
        self._folder = folder
        self._tokenizer = load_tokenizer(folder)
        template = ChatTemplate(self._tokenizer, variables=variables)
        self.thinking_off = thinking_off(template.source, template.variables)
        self._template = template.with_variables(self.thinking_off)

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return len(self._tokenizer)

    @property
    def variables(self) -> Mapping[str, Any]:
        """The variables that the chat template is given."""
        return self._template.variables

    def document(self, document: HeldoutDocument) -> Ids:
        """A whole document: a chat without an opening for one more turn, or plain text."""
        if document.messages:
            return self._ids(self._chat(document.messages, {}, answered=True))
        return tuple(self._tokenizer.encode(document.text))

    def task(self, task: Task) -> Ids:
        """A question up to where the assistant speaks."""
        return self._ids(self._chat(task.messages, task.chat_template_kwargs))

    def thinking(self, task: Task, tokens: int) -> Thinking | None:
        """How the model reasons, in at most ``tokens``, before it answers; None if it does not."""
        own = task.chat_template_kwargs
        prompt = self._chat(task.messages, own)
        variables, special = {**self.variables, **own}, self._tokenizer.all_special_tokens
        thinking = find_thinking(self._template.source, prompt, variables, special)
        return None if thinking is None else replace(thinking, tokens=tokens)

    def _ids(self, text: str) -> Ids:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _chat(
        self, messages: Sequence[Message], own: Mapping[str, Any], *, answered: bool = False
    ) -> str:
        if not self._template.source:
            raise UsageError(
                f"the tokenizer in {self._folder} has no chat template",
                fix='add one, or give held-out documents as {"text": …} and leave chat tasks out',
            )
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.chat(plain, answered=answered, variables=own)
        except TemplateProblem as problem:
            raise UsageError(
                f"{problem}, whose roles are {[m.role for m in messages]}",
                fix="correct the roles in "
                "the data file, or set quality.chat_template_kwargs to the variables that the "
                "template needs",
            ) from problem


def identity(documents: Sequence[Ids], prompts: Sequence[Ids], tasks: Sequence[Task]) -> str:
    """Hash all questions, as token ids; records with different hashes are not comparable."""
    # The template's variables are in the token ids already.
    questions = [task.model_dump(mode="json", exclude={"chat_template_kwargs"}) for task in tasks]
    data = json.dumps([documents, prompts, questions], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()
