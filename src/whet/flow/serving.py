"""One checkpoint on an engine, outside any run, and one trial on the server of a run."""

from __future__ import annotations

from pathlib import Path

from whet.client.calls import EXTRA_BODY, body_fields
from whet.core.errors import EngineStartError
from whet.core.protocols import Engine, Server
from whet.core.provenance import find_device
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.load import TrialRecord
from whet.core.redact import public_env, secret_env
from whet.core.spec import SIXTEEN_BIT, EngineSpec
from whet.engines import get_engine, get_profile
from whet.load import TrialPlan, run_trial
from whet.load.plan import with_fields


def plain_variant(
    path: Path,
    spec: EngineSpec,
    *,
    max_model_len: int,
    scheme: str = SIXTEEN_BIT,
) -> Variant:
    """Return the checkpoint without a lever; the spec's own arguments replace the defaults."""
    args = get_profile(spec.name).trial_args(find_device().kind, eager=True)
    return Variant(
        name=path.name,
        weights=SIXTEEN_BIT,
        scheme=scheme,
        model_path=str(path),
        speculation=None,
        prefix_cache=False,
        engine_args=tuple({"max_model_len": max_model_len, **args, **spec.args}.items()),
        env=tuple(public_env(spec.env).items()),
        secret_env=tuple(secret_env(spec.env).items()),
    )


def resolve_alone(variant: Variant, spec: EngineSpec) -> tuple[Engine, ResolvedEngine]:
    """Return the engine and its settings; ``EngineStartError`` where it cannot serve it."""
    engine = get_engine(spec.name)
    try:
        resolved = engine.resolve(variant, spec)
        if (reason := engine.unsupported(resolved)) is not None:
            raise EngineStartError(reason)
    except EngineStartError as error:
        raise EngineStartError(
            f"{variant.model_path} cannot be served here: {error}",
            fix="or give a running server's URL",
        ) from error
    return engine, resolved


def trial_on(server: Server, resolved: ResolvedEngine, plan: TrialPlan) -> TrialRecord:
    """Run one trial on the server of a run; errors as of ``run_trial``."""
    if resolved.extra_body is not None:
        plan = with_fields(plan, body_fields(resolved.extra_body, EXTRA_BODY))
    return run_trial(
        server.base_url,
        server.model_name,
        plan=plan,
        memory=server.memory_bytes,
        alive=server.ensure_alive,
    )
