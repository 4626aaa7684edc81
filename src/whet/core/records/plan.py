"""What would fit where, worked out before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProblemKind = Literal[
    "tokenizer", "vocabulary", "memory", "length", "settings", "shape", "weights", "device", "disk",
    "traffic", "flags", "unsupported", "recipe",
]  # fmt: skip
"""``unsupported`` is what the installed engine refuses, ``recipe`` what cannot be quantized."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """One variant on one device, in bytes a device.

    ``limit_bytes`` is what the engine may take; ``kv_pool_bytes`` what is left of it for the KV
    cache (0 where the weights alone are too large) and ``kv_tokens`` the tokens that fit there,
    a draft's KV included, if requests are as long as those that ``tokens_needed`` counts: the
    largest batch, or one request of ``max_model_len``. ``kv_bytes_per_token`` is of the layers that
    keep every token; ``kv_request_bytes`` is all that one request of the workload takes, in whole
    blocks. The ``fit_*`` are the values with which it would fit, each
    alone; None where no value of that setting is enough. ``reason`` is None where it fits.
    """

    variant: str
    limit_bytes: int
    weight_bytes: int
    draft_weight_bytes: int | None
    activation_bytes: int
    kv_pool_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    max_model_len: int
    tokens_needed: int
    required_bytes: int
    fits: bool
    fit_max_model_len: int | None
    fit_batch_size: int | None
    reason: str | None
    kv_request_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """Everything but the KV cache."""
        return self.weight_bytes + (self.draft_weight_bytes or 0) + self.activation_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Why a variant cannot run here, with the fix; ``variant`` is None for the whole run."""

    variant: str | None
    message: str
    kind: ProblemKind
