"""One request to a model, as values; its JSON form is made here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.core.errors import UsageError

COMPLETIONS = "/v1/completions"
CHAT_COMPLETIONS = "/v1/chat/completions"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What an answer is checked against. ``prompt_tokens`` is None where no ids are sent."""

    max_tokens: int
    prompt_tokens: int | None
    ignore_eos: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionCall:
    """A prompt in exactly one form (token ids, text or chat messages) and how to answer it.

    ``ignore_eos`` and what goes with it are fields that vLLM knows: they are sent only when it is
    set, so that servers which refuse unknown fields can be asked too. ``extra`` wins over
    everything else; a field that it sets to None is left out.
    """

    prompt_token_ids: tuple[int, ...] | None = None
    prompt: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    max_tokens: int = 16
    temperature: float = 0.0
    ignore_eos: bool = False
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The endpoint that takes this form of prompt."""
        return COMPLETIONS if self.messages is None else CHAT_COMPLETIONS

    @property
    def limits(self) -> RequestLimits | None:
        """What its answer is checked against; None where ``extra`` replaces ``max_tokens``."""
        if "max_tokens" in self.extra or "max_completion_tokens" in self.extra:
            return None
        ids = self.prompt_token_ids
        return RequestLimits(
            max_tokens=self.max_tokens,
            prompt_tokens=None if ids is None else len(ids),
            ignore_eos=self.ignore_eos and bool(self.extra.get("ignore_eos", True)),
        )

    def body(self, *, model: str | None, stream: bool) -> dict[str, Any]:
        """The JSON body; ``UsageError`` unless exactly one form of prompt is given.

        ``model`` None leaves the name out: what remains is the traffic itself, the same for every
        variant.
        """
        ids, messages = self.prompt_token_ids, self.messages
        given = sum(form is not None for form in (ids, self.prompt, messages))
        if given != 1:
            raise UsageError(
                f"a call needs one prompt and has {given}",
                fix="give prompt_token_ids, prompt or messages",
            )
        body: dict[str, Any] = {} if model is None else {"model": model}
        if messages is not None:
            body["messages"] = [dict(item) for item in messages]
        else:
            body["prompt"] = self.prompt if ids is None else list(ids)
        body |= {"max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.ignore_eos:
            # A model that runs past its end token would stream pieces without output.
            body |= {"ignore_eos": True, "skip_special_tokens": False}
        if self.seed is not None:
            body["seed"] = self.seed
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        body |= self.extra
        return {name: value for name, value in body.items() if value is not None}
