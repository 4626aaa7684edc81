"""Seconds of one engine step: a roofline with coefficients that physics bounds."""

from __future__ import annotations

from dataclasses import dataclass

from whet.predict.hardware import Sheet
from whet.predict.performance.coefficients import EIGHT_BIT, Coefficients
from whet.predict.performance.work import Work

_SHARP = 3.0
"""How sharply a product turns from memory-bound to compute-bound: a p-norm of the two times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Speculation: ``tokens`` proposed a step by ``work``'s model, ``length`` accepted on average.

    ``length`` counts the target's own token. ``work`` is None for n-grams.
    """

    tokens: int
    length: float
    work: Work | None = None


class StepModel:
    """Seconds of a step, by what it holds.

    ``seconds`` adds up: linear layers (a p-norm of bytes ÷ bandwidth and operations ÷ compute),
    those of experts by the same rule, the vocabulary head of sampled rows, attention (bytes of KV
    cache, operations of prompts), a fixed cost a layer, a step and a sequence, what devices send
    each other, and the draft's own steps.

    A step gives every decoding sequence a token. A pipeline computes it in as many parts as it has
    stages, each part on one stage after the other; ranks compute their sequences at once. A prompt
    is not divided, so a step is as long as that of the rank or part which has one.

    The front end does one thing at a time: ``request_s`` for a request, ``message_s`` for the
    tokens of a sequence's step, which it sends together; between ``turns`` of a request's own every
    sequence has one.
    """

    def __init__(
        self, work: Work, sheet: Sheet, coefficients: Coefficients, *, draft: Draft | None = None
    ) -> None:
        """Multiply out what does not depend on the step."""
        self.draft = draft
        self.rows = 1 if draft is None else draft.tokens + 1
        self.advance = 1.0 if draft is None else draft.length
        self._work, self._c = work, coefficients
        self._parts = work.stages * work.ranks
        bandwidth, compute = coefficients.of(work.scheme)
        peak = sheet.flops_8 if work.scheme.partition("/")[0] in EIGHT_BIT else sheet.flops_16
        self._weight_s = work.weight_bytes / (sheet.bandwidth * bandwidth)
        self._expert_s = work.expert_bytes / (sheet.bandwidth * bandwidth)
        self._token_s = work.token_flops / (peak * compute)
        self._routed_s = work.expert_flops / (peak * compute)
        self._moved_s = work.routed_bytes / sheet.bandwidth
        self._head_s = work.head_bytes / (sheet.bandwidth * coefficients.of("16bit")[0])
        self._row_s = work.head_bytes / (sheet.flops_16 * coefficients.of("16bit")[1])
        self._kv = [
            (width / (sheet.bandwidth * coefficients.kv_bandwidth), window)
            for width, window in work.kv_bytes
        ]
        self._state_s = work.state_bytes / (sheet.bandwidth * coefficients.kv_bandwidth)
        self._pair_s = work.pair_flops / (sheet.flops_16 * coefficients.attention)
        self.host_s, self.prefill_s = coefficients.step_s, coefficients.prefill_s
        self.request_s, self.message_s = coefficients.request_s, coefficients.message_s
        self.turns = coefficients.turns
        self.launch_s = work.expert_layers * coefficients.expert_host_s
        if work.ranks > 1:
            self.launch_s += work.expert_layers * coefficients.gather_host_s
        self._fixed_s = work.layers * coefficients.layer_s
        self._fixed_s += work.expert_layers * coefficients.expert_s
        self._latency_s, self._sent_s, self._gathered_s = _exchange(work, sheet, coefficients)
        self._drafter = StepModel(draft.work, sheet, coefficients) if draft and draft.work else None

    def parts(self, decoding: int, context: float) -> dict[str, float]:
        """Seconds of each part of a step without prompts; the products' larger bound stands.

        Keys: ``weights`` or ``compute``, ``experts``, ``KV cache``, ``layers`` (launches),
        ``exchange`` (between devices), ``sequences``, ``vocabulary``, ``draft``.
        """
        names = ("experts", "KV cache", "layers", "exchange", "sequences", "vocabulary", "draft")
        linear_s, *others = self._terms(decoding, context, 0, 0.0, 0)
        own = self._own(decoding) * self.rows
        bound = "weights" if self._weight_s >= own * self._token_s else "compute"
        return {bound: linear_s, **dict(zip(names, others, strict=True))}

    def seconds(
        self,
        decoding: int,
        context: float,
        prefill: int = 0,
        pairs: float = 0.0,
        ended: int = 0,
        *,
        padded: bool = False,
    ) -> float:
        """Seconds of a step.

        ``decoding`` sequences with ``context`` tokens of KV cache together, ``prefill`` tokens of
        prompts that attend to ``pairs`` of tokens, ``ended`` prompts whose first token is sampled.
        In a CUDA graph ranks are ``padded`` to the longest (``dp_utils`` of vLLM 0.32).
        """
        return sum(self._terms(decoding, context, prefill, pairs, ended, padded=padded))

    def tokens(self, decoding: int, prefill: int, ended: int) -> float:
        """Tokens of a step on the rank, in the part, that has most of them."""
        return self._own(decoding) * self.rows + prefill / self._prompt_parts(ended)

    def _prompt_parts(self, ended: int) -> int:
        """Ranks and parts that have a prompt."""
        return max(min(self._parts, ended), 1)

    def _own(self, decoding: int) -> float:
        """Sequences of one rank in one part."""
        return max(decoding / self._parts, 1.0) if decoding else 0.0

    def _terms(
        self,
        decoding: int,
        context: float,
        prefill: int,
        pairs: float,
        ended: int,
        *,
        padded: bool = False,
    ) -> tuple[float, ...]:
        """Seconds by part, in the order of ``parts``; attention of prompts counts as linear."""
        work, own = self._work, self._own(decoding)
        prompt_parts = self._prompt_parts(ended)
        tokens = self.tokens(decoding, prefill, ended)
        linear_s = _bound(self._weight_s, tokens * self._token_s)
        linear_s += pairs / prompt_parts * self._pair_s
        expert_s = exchange_s = 0.0
        if self._expert_s:
            split = min(work.stages, prompt_parts)
            every = max(decoding * self.rows / work.stages, own) + prefill / split
            if padded and work.ranks > 1:
                every = tokens * work.ranks
            read_s = self._expert_s * (1 - (1 - work.expert_share) ** every)
            expert_s = _bound(read_s, every * self._routed_s) + every * self._moved_s
            exchange_s = every * self._gathered_s
        exchange_s += self._latency_s + tokens * self._sent_s
        kv_s = own * self._state_s
        if decoding:
            mean = context / decoding
            for token_s, window in self._kv:
                kv_s += own * token_s * (mean if window is None else min(mean, window))
        rows = own * self.rows + ended / prompt_parts
        draft_s = 0.0
        if self._drafter is not None and self.draft is not None and decoding:
            draft_s = self.draft.tokens * self._drafter.seconds(decoding, context)
        return (
            work.stages * linear_s,
            work.stages * expert_s,
            work.stages * kv_s,
            work.stages * self._fixed_s,
            work.stages * exchange_s,
            decoding / work.ranks * self._c.sequence_s,
            work.stages * max(self._head_s, rows * self._row_s) if rows else 0.0,
            draft_s,
        )


def _bound(memory_s: float, compute_s: float) -> float:
    """Products that wait for bytes and for operations."""
    bound: float = (memory_s**_SHARP + compute_s**_SHARP) ** (1 / _SHARP)
    return bound


def _exchange(work: Work, sheet: Sheet, c: Coefficients) -> tuple[float, float, float]:
    """What a stage sends: seconds a step, for a rank's own token, and for a token of all ranks.

    Two all-reduces a layer, 2 (n − 1) ÷ n of the tokens' hidden states each. Ranks gather all
    tokens before a layer of experts and scatter them after it, (n − 1) ÷ n each (vLLM's
    ``allgather_reducescatter``), in place of its all-reduce. A pipeline hands over once a stage.
    """
    byte_s = work.hidden_bytes / max(sheet.link * c.link, 1.0)
    latency_s = own_s = gathered_s = 0.0
    if work.devices > 1:
        reduces = 2 * work.layers - (work.expert_layers if work.ranks > 1 else 0)
        latency_s += reduces * c.reduce_s
        own_s += reduces * 2 * (work.devices - 1) / work.devices * byte_s
    if work.ranks > 1:
        latency_s += 2 * work.expert_layers * c.gather_s
        gathered_s += 2 * work.expert_layers * (work.ranks - 1) / work.ranks * byte_s
    if work.stages > 1:
        latency_s += c.send_s
        own_s += byte_s
    return latency_s, own_s, gathered_s
