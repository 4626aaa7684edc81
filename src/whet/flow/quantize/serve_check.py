"""Serve one checkpoint on the installed engine, to see that it loads and answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whet.checkpoint import read_facts
from whet.core.errors import EngineStartError
from whet.core.protocols import Engine, Server
from whet.core.provenance import cpu_dtype, find_device
from whet.core.records import QuantizedCheckpoint, ResolvedEngine, Scalar, Variant
from whet.core.redact import public_env, secret_env
from whet.core.spec import GGUF_SCHEMES, SIXTEEN_BIT, EngineSpec, RecipeSpec
from whet.engines import get_engine, get_profile

_CHECK_TOKENS = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """A checkpoint folder and its engine settings; ``recipe`` None is 16 bit.

    ``eager`` starts sooner; without it the engine runs as it would in use.
    """

    name: str
    path: Path
    recipe: RecipeSpec | None
    max_model_len: int
    eager: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeCheck:
    """The engine served the checkpoint and answered ``answer``."""

    engine: str
    answer: str
    kernels: tuple[str, ...]
    ready_s: float


class CannotServe(Exception):
    """No engine here can serve the checkpoint; the message has the reason."""


def check_serving(
    done: QuantizedCheckpoint, recipe: RecipeSpec, *, log: Path, spec: EngineSpec | None = None
) -> ServeCheck:
    """Serve a finished checkpoint once with the installed engine.

    Raises ``CannotServe`` where no engine is installed or it does not support the checkpoint, and
    for a speculation head, which needs its target; ``EngineStartError`` with the engine's own
    message where it fails to load or to answer.
    """
    folder = Path(done.path)
    facts = read_facts(folder)
    if "eagle" in facts.architecture.lower():
        raise CannotServe(
            "a speculation head serves beside its target; name it in a variant (speculation: "
            f"{{method: eagle3, draft: {folder}}})"
        )
    serving = Serving(
        name=folder.name,
        path=folder,
        recipe=recipe,
        max_model_len=min(_CHECK_TOKENS, facts.max_position),
    )
    own = "llamacpp" if recipe.scheme in GGUF_SCHEMES else "vllm"
    spec = spec or EngineSpec(name=own)
    engine, resolved = resolve_serving(serving, spec)
    with engine.serve(resolved, log=log) as server:
        return ServeCheck(
            engine=engine_title(resolved),
            answer=server.start.canary_text,
            kernels=kernels_of(resolved, server),
            ready_s=server.start.ready_s,
        )


def resolve_serving(serving: Serving, spec: EngineSpec) -> tuple[Engine, ResolvedEngine]:
    """The engine and its settings; ``CannotServe`` where it is missing or does not support them."""
    engine = get_engine(spec.name)
    try:
        resolved = engine.resolve(_variant(serving, spec), spec)
    except EngineStartError as error:
        raise CannotServe(str(error)) from error
    if (reason := engine.unsupported(resolved)) is not None:
        raise CannotServe(reason)
    return engine, resolved


def kernels_of(resolved: ResolvedEngine, server: Server) -> tuple[str, ...]:
    """The kernels for weights that the engine's log names."""
    return get_profile(resolved.engine).read_log(server.log_text()).weight_kernels


def engine_title(resolved: ResolvedEngine) -> str:
    """``vllm 0.32.0 on cpu``."""
    return f"{resolved.engine} {resolved.engine_version} on {resolved.device}"


def _variant(serving: Serving, spec: EngineSpec) -> Variant:
    recipe = serving.recipe
    return Variant(
        name=serving.name,
        weights=SIXTEEN_BIT if recipe is None else serving.name,
        scheme=SIXTEEN_BIT if recipe is None else recipe.stored_scheme,
        model_path=str(serving.path),
        speculation=None,
        prefix_cache=False,
        engine_args=tuple({**_defaults(serving, spec.name), **spec.args}.items()),
        env=tuple(public_env(spec.env).items()),
        secret_env=tuple(secret_env(spec.env).items()),
        recipe_schemes=() if recipe is None else recipe.schemes,
    )


def _defaults(serving: Serving, engine: str) -> dict[str, Scalar]:
    """Eager where no speed is measured; on a CPU the dtype that it computes fastest."""
    args: dict[str, Scalar] = {"max_model_len": serving.max_model_len}
    if engine != "vllm":
        return args
    if serving.eager:
        args["enforce_eager"] = True
    if find_device().kind == "cpu" and (dtype := cpu_dtype()) != "auto":
        args["dtype"] = dtype
    if serving.recipe is not None and serving.recipe.kv_cache is not None:
        args["kv_cache_dtype"] = serving.recipe.kv_cache
    return args
