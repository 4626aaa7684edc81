"""Whether the answers are still right: perplexity, tasks, paired tests and the gate."""

from whet.quality.degenerate import TimedAnswer, degenerate, examine_traffic
from whet.quality.golden import GoldenSource
from whet.quality.heldout import heldout_ids
from whet.quality.lossless import PlainReference
from whet.quality.measure import Measured, measure_quality, tokens_needed
from whet.quality.paired import detectable_drop, holm, mcnemar, wilson, worse
from whet.quality.pairing import rejudge
from whet.quality.plan import ChecksPlan, QualityPlan
from whet.quality.prompts import Encoder
from whet.quality.verdicts import verdicts

__all__ = [
    "ChecksPlan",
    "Encoder",
    "GoldenSource",
    "Measured",
    "PlainReference",
    "QualityPlan",
    "TimedAnswer",
    "degenerate",
    "detectable_drop",
    "examine_traffic",
    "heldout_ids",
    "holm",
    "mcnemar",
    "measure_quality",
    "rejudge",
    "tokens_needed",
    "verdicts",
    "wilson",
    "worse",
]
