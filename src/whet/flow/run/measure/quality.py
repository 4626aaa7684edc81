"""The quality gate of one variant in a run: who it is compared with, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from whet.core.errors import EngineLostError, MeasurementError
from whet.core.flags import RUST_FRONTEND_ENV, parse_json, plain_args
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import EngineFacts
from whet.core.records.quality import QualityRecord
from whet.core.store import RunStore
from whet.data import FOLDER, is_built_in
from whet.engines import get_profile
from whet.flow.run.plan import Plan, Recorder, weights_key
from whet.levers.weights import running_scheme
from whet.quality import ChecksPlan, PlainReference, QualityPlan, measure_quality

KIND: Final = "quality"
PLAIN: Final = "plain_answers"
_KERNEL_ARGS: Final = frozenset(
    {"attention_backend", "enforce_eager", "kernel_config", "linear_backend", "optimization_level"}
)
"""Arguments that choose kernels; so do ``compilation_config`` and the variant's environment."""
_ROUNDS: Final = frozenset({"W8A8-INT8", "FP8", "FP8_BLOCK", "W4A8_FP8"})
"""Schemes whose activations are rounded to 8 bits on the way. A mix is held to the strict limit:
its distance from 16 bits is that of its 4-bit layers."""


def measure_variant_quality(
    plan: Plan, recorder: Recorder, server: Server, resolved: ResolvedEngine
) -> None:
    """Measure and store; what fails is journalled, and only a lost engine raises."""
    name, spec, store = resolved.variant.name, plan.spec, recorder.store
    is_baseline = name == spec.baseline
    quality, profile = spec.quality, get_profile(resolved.engine)
    if profile.scoring.alone(resolved):
        quality = quality.model_copy(update={"concurrency": 1})
    quality_plan = QualityPlan(
        variant=name,
        tokenizer=plan.tokenizer,
        spec=quality,
        heldout=plan.inputs.heldout,
        tasks=plan.inputs.tasks,
        baseline=None if is_baseline else store.get(KIND, spec.baseline, QualityRecord),
        tolerances=spec.objective.quality,
        arrays=store.path("top_logprobs"),
        checks=_checks(plan, store, resolved),
        scoring_defect=_scoring_defect(store, resolved),
        counter_names=profile.counters_of(resolved.variant),
        dialect=profile.scoring.dialect,
        built_in_text=is_built_in(plan.inputs.heldout, "heldout"),
    )
    try:
        measured = measure_quality(
            server.base_url, server.model_name, quality_plan, observer=recorder.observer
        )
        server.ensure_alive()
    except (MeasurementError, EngineLostError) as error:
        store.note(KIND, name, status="failed", reason=str(error))
        if isinstance(error, EngineLostError):
            raise
        recorder.observer.warn(f"{name} quality: {error}")
        return
    if measured.plain is not None:
        store.put(PLAIN, name, measured.plain)
    store.put(KIND, name, measured.record)


def _checks(plan: Plan, store: RunStore, resolved: ResolvedEngine) -> ChecksPlan:
    variant = resolved.variant
    same = [each for each in plan.resolved if weights_key(each) == weights_key(resolved)]
    speculates, plain = variant.speculation is not None, plain_of(plan.resolved, resolved)
    search = plan.spec.search
    others = [
        record
        for each in same
        if each.variant.name != variant.name
        and (record := store.get(KIND, each.variant.name, QualityRecord)) is not None
    ]
    reference = next((record for record in others if record.twin == record.variant), None)
    first = next(
        (each for each in same if reference and each.variant.name == reference.variant), resolved
    )
    return ChecksPlan(
        golden=store.path("golden"),
        # Probes hold tokens of held-out text and are deployed.
        golden_text=FOLDER / "heldout.jsonl.xz" if plan.spec.is_private else None,
        same_weights_reference=reference,
        other_kernels=_other_kernels(first, resolved),
        rounds=running_scheme(resolved) in _ROUNDS,
        plain=store.get(PLAIN, plain.variant.name, PlainReference)
        if speculates and plain is not None
        else None,
        # A search may give the same weights a draft later.
        is_plain=plain is resolved
        and (
            (search is not None and "speculation" not in search.never)
            or any(each.variant.speculation for each in same)
        ),
    )


def plain_of(variants: Iterable[ResolvedEngine], resolved: ResolvedEngine) -> ResolvedEngine | None:
    """Return the first variant with the same weights and no speculation."""
    plain = (each for each in variants if each.variant.speculation is None)
    return next((each for each in plain if weights_key(each) == weights_key(resolved)), None)


def _scoring_defect(store: RunStore, resolved: ResolvedEngine) -> str | None:
    facts = store.get("facts", resolved.variant.name, EngineFacts)
    return get_profile(resolved.engine).scoring.defect(resolved.variant, facts)


def _other_kernels(first: ResolvedEngine, resolved: ResolvedEngine) -> bool:
    """Whether two servers may run on other kernels.

    So they may where none is asked for, unless both are eager: the compiler times what it writes
    at every start, and two servers of one configuration may keep different ones.
    """
    eager = all(plain_args(each.variant).get("enforce_eager") is True for each in (first, resolved))
    return not eager or _kernels(first) != _kernels(resolved)


def _kernels(resolved: ResolvedEngine) -> tuple[object, ...]:
    """What is asked that decides which kernels run; CUDA graphs replay the same ones."""
    args = plain_args(resolved.variant)
    compiled = parse_json(args.pop("compilation_config", ""))
    parts = compiled.items() if isinstance(compiled, dict) else ()
    chosen = [(k, v) for k, v in args.items() if k in _KERNEL_ARGS]
    chosen += [(k, str(v)) for k, v in parts if not k.startswith("cudagraph")]
    env = [(k, v) for k, v in resolved.variant.env if k != RUST_FRONTEND_ENV]
    return (tuple(sorted(chosen)), tuple(sorted(env)))
