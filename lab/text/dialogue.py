"""What a document is: a chat of one desk, as messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
Scorer = Literal["json_exact", "number", "exact", "none"]
Task = Literal[
    "json_extraction", "arithmetic", "recall", "routing", "correction", "letter", "lookup"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str

    def as_dict(self) -> dict[str, str]:
        """The form that chat templates and OpenAI endpoints take."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A piece of a chat that ends in one reply worth scoring.

    ``lead`` holds earlier messages that only this exchange needs (a multi-turn order).
    ``expected`` is what ``scorer`` compares with a model's reply; the training text has ``reply``.
    ``chance`` is the probability that a guess is right, where it is known.
    """

    task: Task
    user: str
    reply: str
    scorer: Scorer
    expected: str
    lead: tuple[Message, ...] = ()
    chance: float | None = None

    def messages(self) -> list[Message]:
        """The exchange with its reply."""
        return [*self.prompt(), Message(role="assistant", content=self.reply)]

    def prompt(self) -> list[Message]:
        """The exchange up to the last user turn."""
        return [*self.lead, Message(role="user", content=self.user)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One chat of a desk: a system prompt, if any, and the exchanges under it."""

    system: str | None
    exchanges: tuple[Exchange, ...]

    def messages(self) -> list[Message]:
        """The whole chat in order."""
        head = [] if self.system is None else [Message(role="system", content=self.system)]
        return head + [message for item in self.exchanges for message in item.messages()]
