"""What stops a run before a server starts: errors of the spec, and what cannot run here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from whet.checkpoint.doubts import kv_scales_problem
from whet.core.errors import CheckpointError, UsageError
from whet.core.flags import plain_args
from whet.core.load import Load
from whet.core.names import did_you_mean
from whet.core.provenance import Device
from whet.core.records.plan import Problem
from whet.flow.run.check.facts import GENERATED, Facts
from whet.flow.run.check.resolve import Resolved, resolve
from whet.flow.run.plan import Engines, quantized_path
from whet.flow.run.traffic.logged import sample_problems
from whet.flow.run.traffic.traced import log_problems
from whet.levers import claims
from whet.load import Draw, build_workload
from whet.predict.disk import disk_problems
from whet.predict.feasibility import Feasibility, assess_variants
from whet.predict.settings import read_settings
from whet.quant.suitability import recipe_problem

SPEC_ERRORS: Final = ("flags", "traffic")
"""Kinds of problems that no other machine solves."""
_SCALED_KV: Final = ("fp8", "fp8_e4m3")
"""Types of the KV cache that a checkpoint's scales are for; e5m2 is meant to go without."""


def examine(
    facts: Facts,
    root: Path,
    engines: Engines,
    device: Device,
    *,
    downloads: Mapping[Path, int] = {},
    disks: bool = True,
) -> tuple[Resolved, Feasibility, tuple[Problem, ...]]:
    """Resolve the variants; return them, what they need, and what stops a run on ``device``.

    ``downloads`` are bytes by folder; with ``disks`` those that are too small count.
    """
    resolved = resolve(facts, root, engines, device)
    needs = assess_variants(
        resolved.as_set,
        target=facts.target,
        draft=facts.draft,
        device=device,
        spec=facts.spec,
        downloads=downloads,
    )
    here = (
        *_spec_errors(facts, resolved),
        *_recipe_problems(facts, resolved, root),
        *needs.problems,
        *(disk_problems(needs.disks) if disks else ()),
    )
    kv = _kv_problems(resolved, {problem.variant for problem in here})
    return resolved, needs, (*here, *kv)


def _spec_errors(facts: Facts, resolved: Resolved) -> Iterator[Problem]:
    """Yield what no other machine solves."""
    _require_known_claims(facts, resolved)
    yield from resolved.problems
    spec = facts.spec
    if spec.load.trace is None and spec.traffic is None:
        yield from _room_problems(facts)
    longest = min(
        (
            read_settings(variant, target=facts.target, device=resolved.device).max_model_len
            for variant in resolved.as_set
        ),
        default=facts.target.max_position,
    )
    own = () if facts.log is None else sample_problems(facts.log, spec.load, longest)
    for message in (*own, *log_problems(spec.load, facts.tokenizer, longest)):
        yield Problem(variant=None, kind="traffic", message=message)


def _require_known_claims(facts: Facts, resolved: Resolved) -> None:
    """Refuse a name in ``evidence.accept_unproved`` that no variant claims."""
    kinds = sorted({claim.kind for item in resolved.variants for claim in claims(item)})
    known = bool(resolved.variants) and facts.spec.search is None
    for name in facts.spec.evidence.accept_unproved if known else ():
        if name not in kinds:
            raise UsageError(
                f"evidence.accept_unproved names the claim {name!r}{did_you_mean(name, kinds)} "
                f"(claims of this spec: {', '.join(kinds)})"
            )


def _room_problems(facts: Facts) -> Iterator[Problem]:
    """Yield whether the chat template refuses built-in chats, or they leave no room for a turn."""
    spec = facts.spec
    size = Load.at(spec.load.concurrency[0])
    draw = Draw(requests=spec.load.requests(size), load=size, trial=0, block_size=1)
    variables = spec.model.variables
    try:
        build_workload(
            facts.texts / GENERATED, facts.tokenizer, spec.workload, draw=draw, variables=variables
        )
    except UsageError as error:
        yield Problem(variant=None, kind="traffic", message=str(error))


def _recipe_problems(facts: Facts, resolved: Resolved, root: Path) -> Iterator[Problem]:
    """Yield variants whose recipe cannot be made of the target, by its headers and config.json."""
    spec, checked = facts.spec, dict[str, str | None]()
    for name in (item.variant.name for item in resolved.variants):
        for recipe in spec.recipes_of(name):
            if quantized_path(root, recipe).is_dir():
                continue
            if recipe not in checked:
                checked[recipe] = recipe_problem(facts.tokenizer, spec.recipes[recipe])
            if (reason := checked[recipe]) is not None:
                message = f"recipes.{recipe}: {reason}"
                yield Problem(variant=name, kind="recipe", message=message)


def _kv_problems(resolved: Resolved, blocked: set[str | None]) -> Iterator[Problem]:
    """Yield stored checkpoints with uncalibrated scales for an FP8 KV cache."""
    for item in resolved.variants:
        variant, folder = item.variant, Path(item.variant.model_path)
        scaled = plain_args(variant).get("kv_cache_dtype") in _SCALED_KV and folder.is_dir()
        if not scaled or variant.name in blocked:
            continue
        try:
            message = kv_scales_problem(folder)
        except CheckpointError as error:
            message = str(error)
        if message is not None:
            yield Problem(variant=variant.name, kind="weights", message=message)
