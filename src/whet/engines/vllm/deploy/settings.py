"""Map a configuration that ran here to a CUDA container, without its CPU settings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from whet.core.hub import snapshot_of
from whet.core.records.engine import ResolvedEngine
from whet.core.redact import public_env
from whet.engines.vllm.hub_words import by_hub_id

_CONTAINER_MODELS: Final = PurePosixPath("/models")
HOUSEKEEPING_ENV: Final = frozenset(
    {
        "VLLM_LOG_MODEL_INSPECTION",
        "VLLM_LOGGING_LEVEL",
        "VLLM_CONFIGURE_LOGGING",
        "VLLM_CACHE_ROOT",
        "VLLM_SERVER_DEV_MODE",
        "PYTHONSAFEPATH",
        "HF_HUB_OFFLINE",
        "CUDA_VISIBLE_DEVICES",
        "LD_PRELOAD",
    }
)
"""Set for the measurement or for this machine; not part of the configuration."""

_CPU_ENV_PREFIX: Final = "VLLM_CPU_"
_CPU_ENV: Final = frozenset({"OMP_NUM_THREADS", "VLLM_DISABLED_KERNELS"})
_CPU_FLAGS: Final = frozenset({"block-size", "dtype", "kv-cache-memory-bytes", "enforce-eager"})
"""Chosen for a CPU's kernels or memory (a block is 128 tokens there, 16 on a GPU).

float32 is the fastest on a CPU without bfloat16 arithmetic, and a GPU's 4-bit kernels refuse it.
"""

_OURS: Final = frozenset({"host", "port", "model"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A checkpoint folder of the host, read-only in the container. ``variable`` overrides it."""

    variable: str
    host: str
    container: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A checkpoint in the container: a path, or a hub id with its revision."""

    name: str
    revision: str | None = None
    mount: Mount | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """What the templates print. ``dropped`` and ``notes`` become comments."""

    variant: str
    model: str
    served_model_name: str
    flags: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    tensor_parallel: int


_Flag = tuple[str, tuple[str, ...]]


def plan_deployment(resolved: ResolvedEngine) -> Deployment:
    """The same configuration for the official CUDA image.

    A local checkpoint, draft or adapter is mounted; a hub snapshot is named by its id and revision
    and comes from the cache volume, because its files are links that a mount would break.
    """
    variant = resolved.variant
    flags, dropped = _portable(_flags(by_hub_id(resolved.argv)), on_cpu=resolved.device == "cpu")
    model = _place(variant.model_path, "WHET_MODEL_DIR")
    places, notes = [model], list[str]()
    if variant.speculation is not None and variant.speculation.draft_path is not None:
        path = variant.speculation.draft_path
        draft = _place(path, "WHET_DRAFT_DIR", prefix="draft-")
        places.append(draft)
        flags = [_with_draft(flag, draft) for flag in flags]
    if variant.loras:
        adapters = _adapters(variant.loras)
        places += adapters.values()
        flags = [_with_adapters(flag, adapters) for flag in flags]
        notes = [
            f"measured with the adapter {name} at revision {place.revision} of {place.name}; "
            "the engine fetches the newest"
            for name, place in adapters.items()
            if place.revision is not None
        ]
    env, dropped_env = _portable_env(dict(resolved.env), on_cpu=resolved.device == "cpu")
    parallel = dict(flags).get("tensor-parallel-size")
    return Deployment(
        variant=variant.name,
        model=model.name,
        served_model_name=resolved.served_model_name,
        flags=tuple(word for flag in flags for word in _words(flag)),
        env=tuple(sorted(env.items())),
        mounts=tuple(place.mount for place in places if place.mount is not None),
        dropped=tuple(dropped + dropped_env),
        notes=tuple(notes),
        tensor_parallel=int(parallel[0]) if parallel else 1,
    )


def _words(flag: _Flag) -> tuple[str, ...]:
    name, values = flag
    return (f"--{name}", *values)


def _flags(argv: tuple[str, ...]) -> list[_Flag]:
    """(name, values) of every flag in the command; no value for a switch, several for a list."""
    flags: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            flags.append((word[2:], []))
        elif flags:
            flags[-1][1].append(word)
    return [(name, tuple(values)) for name, values in flags]


def _portable(flags: list[_Flag], *, on_cpu: bool) -> tuple[list[_Flag], list[str]]:
    portable, dropped = [], []
    for name, values in flags:
        if name in _OURS:
            continue
        if on_cpu and name.removeprefix("no-") in _CPU_FLAGS:
            dropped.append(" ".join(_words((name, values))))
        else:
            portable.append((name, values))
    return portable, dropped


def _portable_env(env: dict[str, str], *, on_cpu: bool) -> tuple[dict[str, str], list[str]]:
    portable, dropped = {}, []
    for name, value in public_env(env).items():
        if name in HOUSEKEEPING_ENV:
            continue
        if on_cpu and (name.startswith(_CPU_ENV_PREFIX) or name in _CPU_ENV):
            dropped.append(f"{name}={value}")
        else:
            portable[name] = value
    return portable, dropped


def _place(path: str, variable: str, *, prefix: str = "") -> _Place:
    """Map a checkpoint's path on this machine to the container."""
    if (snapshot := snapshot_of(path)) is not None:
        return _Place(name=snapshot.hub_id, revision=snapshot.commit)
    if not path.startswith("/"):
        return _Place(name=path)
    inside = str(_CONTAINER_MODELS / f"{prefix}{Path(path).name}")
    return _Place(name=inside, mount=Mount(variable=variable, host=path, container=inside))


def _adapters(loras: tuple[tuple[str, str], ...]) -> dict[str, _Place]:
    """Adapters by name; a number keeps two folders of one name apart."""
    return {
        name: _place(path, f"WHET_LORA_{at}_DIR", prefix=f"lora-{at}-")
        for at, (name, path) in enumerate(loras, start=1)
    }


def _with_draft(flag: _Flag, draft: _Place) -> _Flag:
    name, values = flag
    if name != "speculative-config" or not values:
        return flag
    config = json.loads(values[0])
    config["model"] = draft.name
    return name, (json.dumps(config),)


def _with_adapters(flag: _Flag, adapters: dict[str, _Place]) -> _Flag:
    """vLLM reads ``name=path``, and JSON where there is a comma."""
    if flag[0] != "lora-modules":
        return flag
    paths = {name: place.name for name, place in adapters.items()}
    return flag[0], tuple(
        json.dumps({"name": name, "path": path}) if "," in path else f"{name}={path}"
        for name, path in paths.items()
    )
