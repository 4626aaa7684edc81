"""Memory by requests in flight and context length, for every precision of one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from whet.core.provenance import Device
from whet.core.records.model import ModelFacts
from whet.core.units import MIB
from whet.predict.hardware import CUDA
from whet.predict.memory import Demand, plan_memory
from whet.predict.plan.evaluate import Candidate

CONTEXTS: Final = (4096, 32_768, 131_072)
BATCHES: Final = (1, 8, 32, 128)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Bytes on each GPU: weights, activations with CUDA graphs and runtime, KV cache; the limit."""

    variant: str
    context: int
    in_flight: int
    weights: int
    activations: int
    kv_cache: int
    limit: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.activations + self.kv_cache

    @property
    def fits(self) -> bool:
        """Whether it is within what the engine may take."""
        return self.total <= self.limit


def memory_table(candidates: Sequence[Candidate], target: ModelFacts) -> Iterator[Fit]:
    """A row for every candidate, context and concurrency; contexts beyond the model's left out."""
    for candidate in candidates:
        device = Device(
            kind="cuda",
            name=candidate.gpu,
            memory_bytes=CUDA[candidate.gpu].memory_mib * MIB,
            count=candidate.devices,
            driver=None,
        )
        for context in (each for each in CONTEXTS if each <= target.max_position):
            args = {**dict(candidate.variant.engine_args), "max_model_len": context}
            variant = replace(candidate.variant, engine_args=tuple(args.items()))
            for batch in BATCHES:
                plan = plan_memory(
                    variant,
                    target=target,
                    stored=candidate.stored,
                    draft=None,
                    device=device,
                    demand=Demand(max_batch=batch, tokens_per_request=context),
                )
                yield Fit(
                    variant=variant.name,
                    context=context,
                    in_flight=batch,
                    weights=plan.weight_bytes,
                    activations=plan.activation_bytes,
                    kv_cache=plan.required_bytes - plan.weight_bytes - plan.activation_bytes,
                    limit=plan.limit_bytes,
                )
