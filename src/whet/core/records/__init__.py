"""The frozen records that the stages hand to one another, and their JSON form."""

from whet.core.records.break_even import (
    AcceptanceLevel,
    BreakEvenMap,
    BreakEvenPoint,
    UncountedLevel,
)
from whet.core.records.codec import decode, encode
from whet.core.records.decision import (
    BreakEven,
    Decision,
    Excluded,
    MatrixEntry,
    Recommendation,
)
from whet.core.records.engine import ResolvedEngine, Scalar, Speculation, StartFacts, Variant
from whet.core.records.evidence import (
    Claim,
    Declared,
    EngineFacts,
    LeverCost,
    LeverCosts,
    TrialNotices,
    Verdict,
    VerdictSet,
)
from whet.core.records.factorial import FactorialView, Interaction, LeverEffect
from whet.core.records.head_of_line import HeadOfLineRecord
from whet.core.records.load import (
    ClientHealth,
    Counters,
    PlannedRequest,
    RequestEvent,
    TrialRecord,
    WorkloadFacts,
)
from whet.core.records.model import ModelFacts, StoredWeights, TokenizerIdentity
from whet.core.records.plan import MemoryPlan, Problem
from whet.core.records.quality import (
    Distances,
    DocumentDistance,
    QualityRecord,
    TaskAnswer,
    TaskExample,
    TaskScore,
)
from whet.core.records.quant import CalibrationFacts, Phase, QuantizedCheckpoint, UnitError
from whet.core.records.schemes import SchemeRow, SchemeTable, ServedScheme
from whet.core.records.summary import CellSummary, Comparison, ComparisonSet, Estimate

__all__ = [
    "AcceptanceLevel",
    "BreakEven",
    "BreakEvenMap",
    "BreakEvenPoint",
    "CalibrationFacts",
    "CellSummary",
    "Claim",
    "ClientHealth",
    "Comparison",
    "ComparisonSet",
    "Counters",
    "Decision",
    "Declared",
    "Distances",
    "DocumentDistance",
    "EngineFacts",
    "Estimate",
    "Excluded",
    "FactorialView",
    "HeadOfLineRecord",
    "Interaction",
    "LeverCost",
    "LeverCosts",
    "LeverEffect",
    "MatrixEntry",
    "MemoryPlan",
    "ModelFacts",
    "Phase",
    "PlannedRequest",
    "Problem",
    "QualityRecord",
    "QuantizedCheckpoint",
    "Recommendation",
    "RequestEvent",
    "ResolvedEngine",
    "Scalar",
    "SchemeRow",
    "SchemeTable",
    "ServedScheme",
    "Speculation",
    "StartFacts",
    "StoredWeights",
    "TaskAnswer",
    "TaskExample",
    "TaskScore",
    "TokenizerIdentity",
    "TrialNotices",
    "TrialRecord",
    "UncountedLevel",
    "UnitError",
    "Variant",
    "Verdict",
    "VerdictSet",
    "WorkloadFacts",
    "decode",
    "encode",
]
