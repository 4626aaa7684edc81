"""Static batches, scheduler presets, and vLLM's performance modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Literal

from whet.core.flags import plain_args
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim
from whet.core.records.load import TrialRecord
from whet.levers.base import Cell, Lever, Outcome, claim_per_cell


class Batching(Lever):
    """``batching: static``: each batch waits for its slowest member."""

    name = "batching"
    counted = False

    def labels(self, variant: Variant) -> Iterator[str]:
        """``batching=static``."""
        if variant.batching != "continuous":
            yield f"batching={variant.batching}"

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where it is not continuous."""
        if resolved.variant.batching != "continuous":
            yield claim_per_cell(
                "batching",
                f"{resolved.variant.batching} batching",
                "no request of a batch was sent before the batch before it had ended",
            )

    def judge_cell(self, claim: Claim, cell: Cell) -> Outcome:
        """The client's own events: what it says of its loop must be what it did."""
        loops = ", ".join(sorted({trial.loop for trial in cell.trials}))
        source = (f"the client: {loops}",)
        if loops != "static":
            return "contradicted", f"the requests were sent in a loop that is {loops}", source
        early = sum(_sent_early(trial) for trial in cell.trials)
        if early:
            observed = f"{early} requests were sent before the batch before theirs had ended"
            return "contradicted", observed, source
        return "proved", "each batch was sent when the one before had ended", source


class Preset(Lever):
    """``preset``: scheduler flags by kind of traffic, which ``args`` may override.

    A small token budget per step keeps the gaps between a stream's tokens short, a large one fills
    the device (vLLM, "Optimization and Tuning", chunked prefill). ``hybrid`` takes the large budget
    and lets no single prompt have more than 1,024 tokens of a step.
    """

    name = "preset"
    spec_type = Literal["chat", "batch", "hybrid"]

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """The scheduler flags of a preset."""
        return PRESETS[value]


class PerformanceMode(Lever):
    """``performance_mode``: defaults of vLLM for few requests or for many.

    ``interactivity`` captures a CUDA graph of every size up to 32, ``throughput`` doubles the
    sequences and tokens of a step where the spec does not set them.
    """

    name = "performance_mode"
    spec_type = Literal["balanced", "interactivity", "throughput"]

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """The flag of the same name."""
        return {"performance_mode": value}

    def problem(self, variant: Variant) -> str | None:
        """A mode whose every setting the spec has set itself."""
        args = plain_args(variant)
        if args.get("performance_mode") == "throughput" and args.keys() >= _DOUBLED:
            return (
                "performance_mode: throughput doubles max_num_seqs and max_num_batched_tokens "
                "where they are not set, and both are set; leave one of them or the mode out"
            )
        if args.get("performance_mode") == "interactivity" and args.get("enforce_eager") is True:
            return (
                "performance_mode: interactivity captures more CUDA graphs, and enforce_eager "
                "captures none; leave one of the two out"
            )
        return None


_DOUBLED: Final = frozenset({"max_num_seqs", "max_num_batched_tokens"})
PRESETS: Final[Mapping[str, Mapping[str, Scalar]]] = {
    "chat": {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,
    },
    "batch": {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 16384,
        "max_num_seqs": 512,
    },
    "hybrid": {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "long_prefill_token_threshold": 1024,
    },
}


def _sent_early(trial: TrialRecord) -> int:
    """Requests that left before the last of the batch before theirs had ended."""
    events = sorted(trial.requests, key=lambda event: event.sent_ns)
    size = max(1, trial.load.slots)
    batches = [events[start : start + size] for start in range(0, len(events), size)]
    return sum(
        event.sent_ns < max(earlier.ended_ns for earlier in before)
        for before, after in pairwise(batches)
        for event in after
    )
