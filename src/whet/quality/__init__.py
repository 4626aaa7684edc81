"""Whether the answers are still right: perplexity, tasks, paired tests and the gate."""

from whet.quality.checks import ChecksPlan, QualityPlan
from whet.quality.degenerate import TimedAnswer, examine_traffic
from whet.quality.lossless import PlainReference
from whet.quality.measure import Measured, measure_quality, rejudge, tokens_needed

__all__ = [
    "ChecksPlan", "Measured", "PlainReference", "QualityPlan", "TimedAnswer", "examine_traffic",
    "measure_quality", "rejudge", "tokens_needed",
]  # fmt: skip
