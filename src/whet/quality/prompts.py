"""Documents and tasks as token ids, by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from whet.checkpoint import load_tokenizer
from whet.core.errors import UsageError
from whet.quality.data import HeldoutDocument, Message, Task

Ids = tuple[int, ...]


class Encoder:
    """Renders and encodes. Text is rendered first and encoded without added specials after, because
    a chat template writes its own."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer; ``CheckpointError`` if the folder has none that can be read."""
        self._folder = folder
        self._tokenizer = load_tokenizer(folder)

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return len(self._tokenizer)

    def document(self, document: HeldoutDocument) -> Ids:
        """A whole document: a chat without an opening for one more turn, or plain text."""
        if document.messages:
            return self._chat(document.messages, open_turn=False)
        return tuple(self._tokenizer(document.text, verbose=False)["input_ids"])

    def task(self, task: Task) -> Ids:
        """A question up to where the assistant speaks."""
        return self._chat(task.messages, open_turn=True)

    def _chat(self, messages: Sequence[Message], *, open_turn: bool) -> Ids:
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise UsageError(
                f"the tokenizer in {self._folder} has no chat template; add one, or give held-out "
                'documents as {"text": …} and leave chat tasks out'
            )
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=open_turn
            )
        except TemplateError as error:
            raise UsageError(
                f"the chat template refuses a chat of roles {[m.role for m in messages]}: {error}; "
                "correct the roles in the data file"
            ) from error
        except (ArithmeticError, MemoryError, TypeError, ValueError) as error:
            raise UsageError(
                f"the chat template in {self._folder} fails ({type(error).__name__}: {error}); "
                "correct it"
            ) from error
        return tuple(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def identity(documents: Sequence[Ids], prompts: Sequence[Ids], tasks: Sequence[Task]) -> str:
    """Hash all questions, as token ids; records with different hashes are not comparable."""
    questions = [task.model_dump(mode="json") for task in tasks]
    data = json.dumps([documents, prompts, questions], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()
