"""``whet.yaml``, checked strictly: unknown keys and wrong types are errors."""

from __future__ import annotations

from whet.core.spec.base import SIXTEEN_BIT, problem_words
from whet.core.spec.reading import load_spec, parse_spec
from whet.core.spec.recipe import (
    GROUPED,
    CalibrationSpec,
    MixedSpec,
    RecipeSpec,
)
from whet.core.spec.redacted import redacted_source, redacted_spec
from whet.core.spec.serving import EngineSpec, EvidenceSpec, HardwareSpec, ModelSpec
from whet.core.spec.traffic import (
    LoadSpec,
    ObjectiveSpec,
    QualitySpec,
    TrafficSpec,
    WorkloadSpec,
)
from whet.core.spec.variants import NEEDS_HEAD, SpeculationSpec, VariantSpec
from whet.core.spec.whole import DEFAULT, SearchSpec, Spec

__all__ = [
    "DEFAULT",
    "GROUPED",
    "NEEDS_HEAD",
    "SIXTEEN_BIT",
    "CalibrationSpec",
    "EngineSpec",
    "EvidenceSpec",
    "HardwareSpec",
    "LoadSpec",
    "MixedSpec",
    "ModelSpec",
    "ObjectiveSpec",
    "QualitySpec",
    "RecipeSpec",
    "SearchSpec",
    "Spec",
    "SpeculationSpec",
    "TrafficSpec",
    "VariantSpec",
    "WorkloadSpec",
    "load_spec",
    "parse_spec",
    "problem_words",
    "redacted_source",
    "redacted_spec",
]
