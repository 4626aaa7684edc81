"""Static batches, and scheduler presets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Literal

from whet.core.records import Claim, ResolvedEngine, Scalar, TrialRecord, Variant
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
    size = max(1, int(trial.batch_size))
    batches = [events[start : start + size] for start in range(0, len(events), size)]
    return sum(
        event.sent_ns < max(earlier.ended_ns for earlier in before)
        for before, after in pairwise(batches)
        for event in after
    )
