"""Seconds of one engine step: a roofline with coefficients that physics bounds."""

from __future__ import annotations

from dataclasses import dataclass

from whet.predict.hardware import Sheet
from whet.predict.performance.coefficients import EIGHT_BIT, Coefficients
from whet.predict.performance.work import Work

_SHARP = 3.0
"""How sharply a product turns from memory-bound to compute-bound: a p-norm of the two times."""
_ROUTED = 1e-12


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

    ``seconds`` adds up: linear layers (a p-norm of bytes ÷ bandwidth and operations ÷ compute), the
    vocabulary head of sampled rows, attention (bytes of the KV cache, operations of prompts), a
    fixed cost a layer, a step and a sequence, two all-reduces a layer, and the draft's own steps.
    """

    def __init__(
        self,
        work: Work,
        sheet: Sheet,
        coefficients: Coefficients,
        *,
        draft: Draft | None = None,
    ) -> None:
        """Multiply out what does not depend on the step."""
        self.draft = draft
        self.rows = 1 if draft is None else draft.tokens + 1
        self.advance = 1.0 if draft is None else draft.length
        self._work, self._c = work, coefficients
        bandwidth, compute = coefficients.of(work.scheme)
        peak = sheet.flops_8 if work.scheme.partition("/")[0] in EIGHT_BIT else sheet.flops_16
        self._weight_s = work.weight_bytes / (sheet.bandwidth * bandwidth)
        self._expert_s = work.expert_bytes / (sheet.bandwidth * bandwidth)
        self._token_s = work.token_flops / (peak * compute)
        self._head_s = work.head_bytes / (sheet.bandwidth * coefficients.of("16bit")[0])
        self._row_s = work.head_bytes / (sheet.flops_16 * coefficients.of("16bit")[1])
        self._kv = [
            (width / (sheet.bandwidth * coefficients.kv_bandwidth), window)
            for width, window in work.kv_bytes
        ]
        self._state_s = work.state_bytes / (sheet.bandwidth * coefficients.kv_bandwidth)
        self._pair_s = work.pair_flops / (sheet.flops_16 * coefficients.attention)
        self.host_s, self.prefill_s = coefficients.step_s, coefficients.prefill_s
        self._fixed_s = work.layers * coefficients.layer_s
        if work.devices > 1:
            self._fixed_s += 2 * work.layers * coefficients.reduce_s
            share = 2 * (work.devices - 1) / work.devices
            self._token_s += 2 * work.layers * share * work.hidden_bytes / max(sheet.link, 1.0)
        self._drafter = StepModel(draft.work, sheet, coefficients) if draft and draft.work else None

    def parts(self, decoding: int, context: float) -> dict[str, float]:
        """Seconds of each part of a step without prompts; the products' larger bound stands.

        Keys: ``weights`` or ``compute``, ``KV cache``, ``layers`` (launches and all-reduces),
        ``sequences``, ``vocabulary``, ``draft``.
        """
        whole = self.seconds(decoding, context)
        tokens = decoding * self.rows
        memory_s = self._weight_s + self._expert_s * (1 - (1 - self._work.expert_share) ** tokens)
        bound = "weights" if memory_s >= tokens * self._token_s else "compute"
        mean = context / max(decoding, 1)
        kv_s = sum(
            decoding * token_s * (mean if window is None else min(mean, window))
            for token_s, window in self._kv
        )
        drafter = self._drafter
        draft_s = 0.0
        if drafter is not None and self.draft is not None:
            draft_s = self.draft.tokens * drafter.seconds(decoding, context)
        others = {
            "KV cache": kv_s + decoding * self._state_s,
            "layers": self._fixed_s,
            "sequences": decoding * self._c.sequence_s,
            "vocabulary": max(self._head_s, tokens * self._row_s),
            "draft": draft_s,
        }
        return {bound: whole - sum(others.values()), **others}

    def seconds(
        self, decoding: int, context: float, prefill: int = 0, pairs: float = 0.0, ended: int = 0
    ) -> float:
        """Seconds of a step.

        ``decoding`` sequences with ``context`` tokens of KV cache together, ``prefill`` tokens of
        prompts that attend to ``pairs`` of tokens, ``ended`` prompts whose first token is sampled.
        """
        tokens = decoding * self.rows + prefill
        memory_s = self._weight_s
        if self._expert_s:
            memory_s += self._expert_s * (1 - (1 - self._work.expert_share) ** tokens)
        compute_s = tokens * self._token_s
        linear_s: float = (memory_s**_SHARP + compute_s**_SHARP) ** (1 / _SHARP)
        rows = decoding * self.rows + ended
        head_s = max(self._head_s, rows * self._row_s) if rows else 0.0
        total: float = self._fixed_s + linear_s + head_s + decoding * self._c.sequence_s
        if decoding:
            mean = context / decoding
            for token_s, window in self._kv:
                total += decoding * token_s * (mean if window is None else min(mean, window))
            total += decoding * self._state_s
        if prefill:
            total += pairs * self._pair_s
        if self._drafter is not None and self.draft is not None and decoding:
            total += self.draft.tokens * self._drafter.seconds(decoding, context)
        return total
