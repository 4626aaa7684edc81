"""lm-evaluation-harness's ``local-completions`` client, with what it does not look at itself.

The only module that imports lm_eval at its top; ``harness.run_harness`` imports it late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lm_eval.models.openai_completions import LocalCompletionsAPI

from whet.client import Endpoint
from whet.quality.likelihood import bounded

if TYPE_CHECKING:
    from whet.quality.harness import HarnessPlan

TIMEOUT_S: Final = 300
RETRIES: Final = 3


class BoundedCompletions(LocalCompletionsAPI):  # type: ignore[misc]  # lm_eval is optional
    """Likelihood requests within the logits' memory budget, and a count of what was cut.

    The harness sends all likelihoods at one concurrency and cuts a prompt that is too long with no
    more than a line in its log.
    """

    def __init__(self, base_url: str, model: str, plan: HarnessPlan, *, max_length: int) -> None:
        """``max_length`` counts the prompt and the one token that every request asks for."""
        super().__init__(
            model=model,
            base_url=f"{base_url}/v1/completions",
            tokenizer=str(plan.tokenizer),
            tokenizer_backend="huggingface",
            tokenized_requests=True,
            num_concurrent=plan.concurrency,
            max_retries=RETRIES,
            max_length=max_length,
            seed=plan.seed,
            timeout=TIMEOUT_S,
            header={k: v for k, v in Endpoint.parse(base_url).headers().items() if k != "Host"},
        )
        # The template writes the first token itself; without one the tokenizer's habit decides.
        self.add_bos_token = not plan.chat_template and _adds_bos(self.tokenizer)
        self._asked_concurrency = plan.concurrency
        self.truncated = 0

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> Any:
        lengths = [len(context) + len(continuation) for _, context, continuation in requests]
        self.truncated += sum(length > self.max_length for length in lengths)
        longest = min(max(lengths, default=1), self.max_length)
        self._concurrent = bounded(self._asked_concurrency, longest, len(self.tokenizer))
        try:
            return super()._loglikelihood_tokens(requests, **kwargs)
        finally:
            self._concurrent = self._asked_concurrency

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        """Count the prompts that leave no room for the reply, which it cuts from the left."""
        for request in requests:
            prompt, settings = request.args[:2]
            room = self.max_length - int(settings.get("max_gen_toks", self._max_gen_toks))
            self.truncated += len(self.tok_encode(prompt, add_special_tokens=False)) > room
        return super().generate_until(requests, disable_tqdm=disable_tqdm)


def _adds_bos(tokenizer: Any) -> bool:
    """Whether plain text is encoded with the begin token and nothing after it."""
    bare, whole = (tokenizer("a", add_special_tokens=flag).input_ids for flag in (False, True))
    return bool(whole == [tokenizer.bos_token_id, *bare])
