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
    CellDecision,
    Decision,
    Excluded,
    MatrixEntry,
    Recommendation,
)
from whet.core.records.distances import Distances, DocumentDistance
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
from whet.core.records.harness import (
    HarnessExample,
    HarnessMetric,
    HarnessRun,
    HarnessSample,
    HarnessScore,
    HarnessTask,
)
from whet.core.records.head_of_line import HeadOfLineRecord
from whet.core.records.hits import HitTokens, ReplayResult
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
    QualityRecord,
    TaskAnswer,
    TaskExample,
    TaskScore,
)
from whet.core.records.quality_checks import (
    DegenerateTraffic,
    Divergence,
    GoldenProbe,
    GoldenProbes,
    GoldenToken,
    GreedyParity,
    LosslessCheck,
    ServedDistances,
    ServedIdentity,
    StructuredScore,
    TwoSample,
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
    "CellDecision",
    "CellSummary",
    "Claim",
    "ClientHealth",
    "Comparison",
    "ComparisonSet",
    "Counters",
    "Decision",
    "Declared",
    "DegenerateTraffic",
    "Distances",
    "Divergence",
    "DocumentDistance",
    "EngineFacts",
    "Estimate",
    "Excluded",
    "FactorialView",
    "GoldenProbe",
    "GoldenProbes",
    "GoldenToken",
    "GreedyParity",
    "HarnessExample",
    "HarnessMetric",
    "HarnessRun",
    "HarnessSample",
    "HarnessScore",
    "HarnessTask",
    "HeadOfLineRecord",
    "HitTokens",
    "Interaction",
    "LeverCost",
    "LeverCosts",
    "LeverEffect",
    "LosslessCheck",
    "MatrixEntry",
    "MemoryPlan",
    "ModelFacts",
    "Phase",
    "PlannedRequest",
    "Problem",
    "QualityRecord",
    "QuantizedCheckpoint",
    "Recommendation",
    "ReplayResult",
    "RequestEvent",
    "ResolvedEngine",
    "Scalar",
    "SchemeRow",
    "SchemeTable",
    "ServedDistances",
    "ServedIdentity",
    "ServedScheme",
    "Speculation",
    "StartFacts",
    "StoredWeights",
    "StructuredScore",
    "TaskAnswer",
    "TaskExample",
    "TaskScore",
    "TokenizerIdentity",
    "TrialNotices",
    "TrialRecord",
    "TwoSample",
    "UncountedLevel",
    "UnitError",
    "Variant",
    "Verdict",
    "VerdictSet",
    "WorkloadFacts",
    "decode",
    "encode",
]
