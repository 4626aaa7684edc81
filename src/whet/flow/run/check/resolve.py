"""From the spec to variants as their engines get them: every path and flag has its value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from whet.checkpoint import lora_rank
from whet.core.errors import EngineStartError, UsageError
from whet.core.provenance import Device
from whet.core.records.engine import ResolvedEngine, Speculation, Variant
from whet.core.records.plan import Problem
from whet.core.redact import public_env, secret_env
from whet.core.spec import SIXTEEN_BIT, SpeculationSpec
from whet.flow.run.check.facts import Facts
from whet.flow.run.plan import Engines, quantized_path
from whet.levers import lever_args, lever_env, problems


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The variants on a device, without those that cannot be resolved; ``problems`` say why."""

    device: Device
    variants: tuple[ResolvedEngine, ...]
    problems: tuple[Problem, ...]

    @property
    def as_set(self) -> list[Variant]:
        """The variants with the resolved environment: an engine's default KV pool counts too."""
        return [replace(item.variant, env=item.env) for item in self.variants]


def resolve(facts: Facts, root: Path, engines: Engines, device: Device) -> Resolved:
    """Resolve every variant of the spec; quantized checkpoints are below ``root``.

    Refused are flags that the engine does not take, weights that cannot be read, and variants whose
    own engine is not installed; ``EngineStartError`` where the run's engine is not.
    """
    spec = facts.spec
    resolved: list[ResolvedEngine] = []
    refused: list[Problem] = []
    for name, item in spec.variants.items():
        if (reason := facts.unreadable.get(item.weights)) is not None:
            refused.append(Problem(variant=name, kind="weights", message=reason))
            continue
        variant, own = _variant(name, facts, root), spec.engine_of(name)
        engine = engines(own.name)
        try:
            made = engine.resolve(variant, own)
        except UsageError as error:
            refused.append(Problem(variant=name, kind="flags", message=str(error)))
            continue
        except EngineStartError as error:
            if item.engine is None:
                raise
            refused.append(Problem(variant=name, kind="unsupported", message=str(error)))
            continue
        resolved.append(made)
        refusal = engine.unsupported(made)
        refused += (
            Problem(variant=name, kind="unsupported", message=message)
            for message in (*problems(made.variant), *([refusal] if refusal else []))
        )
    return Resolved(device=device, variants=tuple(resolved), problems=tuple(refused))


def _variant(name: str, facts: Facts, root: Path) -> Variant:
    spec = facts.spec
    item, engine = spec.variants[name], spec.engine_of(name)
    loras = {adapter: str(facts.folders[ref]) for adapter, ref in item.loras.items()}
    item = item.model_copy(update={"loras": loras})
    recipe = spec.recipes.get(item.weights)
    stored = facts.target if item.weights == SIXTEEN_BIT else facts.weights.get(item.weights)
    if stored is not None:
        scheme, path = stored.stored.scheme, stored.path
    else:
        made = quantized_path(root, item.weights)
        scheme, path = spec.recipes[item.weights].stored_scheme, str(made)
    # Scales of keys and values are in the checkpoint to be used.
    cache = {"kv_cache_dtype": recipe.kv_cache} if recipe and recipe.kv_cache else {}
    own = {**lever_args(item.lever_values), **item.args}
    env = {**engine.env, **lever_env(item.lever_values), **item.env}
    return Variant(
        name=name,
        weights=item.weights,
        scheme=scheme,
        model_path=path,
        speculation=_speculation(item.speculation, facts, root),
        prefix_cache=item.prefix_cache,
        engine_args=tuple({**cache, **engine.args, **own}.items()),
        env=tuple(public_env(env).items()),
        secret_env=tuple(secret_env(env).items()),
        recipe_schemes=() if recipe is None else recipe.schemes,
        loras=tuple(item.loras.items()),
        max_loras=item.max_loras or len(item.loras) or None,
        lora_skew=item.lora_skew,
        layout=None if item.layout is None else item.layout.record,
        lora_rank=max((lora_rank(Path(path)) for path in loras.values()), default=None),
        batching=item.batching,
        own_args=tuple(own),
        kv_scales=recipe is not None and recipe.kv_cache is not None,
        engine=None if engine == spec.engine else item.engine,
    )


def _speculation(item: SpeculationSpec | None, facts: Facts, root: Path) -> Speculation | None:
    """Resolve the draft: its own folder, a recipe's checkpoint (self-speculation) or the spec's."""
    if item is None:
        return None
    path = None
    if item.draft is not None and item.draft in facts.spec.recipes:
        path = quantized_path(root, item.draft)
    elif item.draft is not None:
        path = facts.folders[item.draft]
    elif item.method == "draft_model" and facts.draft is not None:
        path = Path(facts.draft.path)
    return Speculation(
        method=item.method,
        num_tokens=item.num_tokens,
        draft_path=None if path is None else str(path),
        options=tuple(item.engine_options.items()),
    )
