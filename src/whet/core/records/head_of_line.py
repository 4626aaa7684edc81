"""What a long prompt does to short requests: raw, so that every figure can be computed again."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.records.load import TrialRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOfLineRecord:
    """Short requests in an open loop, with long prompts sent among them at equal distances.

    The short ones arrive as a Poisson process of ``rate_rps`` requests a second; one long prompt is
    due every ``period_ns``. ``long_indices`` are those of the long ones among ``trial.requests``,
    all others are short. ``slots`` is how many short streams the rate was taken from. Equal
    ``trial.workload_sha256``, rate and period mean equal traffic at equal times.
    """

    variant: str
    long_tokens: int
    short_tokens: int
    short_output: int
    slots: int
    rate_rps: float
    period_ns: int
    long_indices: tuple[int, ...]
    trial: TrialRecord
