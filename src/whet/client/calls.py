"""One request to a model, as values; its JSON form is made here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.outside import finite, json_value

EXTRA_BODY: Final = "engine.args.extra_body"
"""Where a spec has the ``extra`` of an attached server."""
_OPTIONAL: Final = (
    *("ignore_eos", "skip_special_tokens", "stream_options", "temperature", "max_tokens", "seed"),
    *("tools", "chat_template_kwargs", "cache_salt"),
)
"""Fields that a body can be without."""
_FIXED: Final[Mapping[str, object]] = {
    **{"stream": True, "n": 1, "best_of": 1, "echo": False, "use_beam_search": False},
    **dict.fromkeys(("model", "prompt", "messages", "prompt_logprobs")),
}
"""Fields that have to have this value, so that an answer is one stream of new tokens."""
_LONGEST: Final = 128
_REFUSED: Final = ("http_400", "http_422")
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


def body_fields(text: str, what: str) -> dict[str, Any]:
    """Return the fields of a JSON object for ``CompletionCall.extra``: null leaves one out.

    ``what`` names the option in the ``UsageError`` for another text, or for other traffic.
    """
    try:
        fields = json_value(text, real=finite)
    except ValueError as error:
        raise UsageError(f"{what} is not valid JSON", fix="quote it for the shell") from error
    if not isinstance(fields, dict):
        raise UsageError(f'{what} must be a JSON object, such as {{"top_k": 20}}')
    if wrong := [name for name, value in fields.items() if _FIXED.get(name, value) != value]:
        why = "each request is measured as one stream of new tokens, of whet's own prompt"
        raise UsageError(f"{what} sets {', '.join(wrong)}: {why}", fix="leave it out")
    return fields


def without_refused(failures: Iterable[tuple[str, str]]) -> dict[str, int | None]:
    """Return the ``extra`` that leaves out the optional fields which a strict server refuses.

    ``failures`` are the words of failed requests, and the server's words with each.
    """
    answers = " ".join(detail for word, detail in failures if word in _REFUSED)
    named = (name for name in _OPTIONAL if re.search(rf"\b{name}\b", answers))
    fields: dict[str, int | None] = dict.fromkeys(named)
    if "max_tokens" in fields:
        fields["max_completion_tokens"] = _LONGEST
    return fields
