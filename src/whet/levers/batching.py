"""Static batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from whet.core.records.engine import ResolvedEngine, Variant
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
