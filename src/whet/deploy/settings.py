"""From what ran here to what a CUDA container runs: paths mapped, CPU settings left out."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from whet.core.records.engine import ResolvedEngine
from whet.core.redact import public_env

_CONTAINER_MODELS: Final = PurePosixPath("/models")
_HOUSEKEEPING_ENV: Final = frozenset(
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
"""Set for the measurement or for this machine; they say nothing about the configuration."""

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
class Deployment:
    """What the templates print. ``dropped`` is told in a comment."""

    variant: str
    model: str
    revision: str | None
    served_model_name: str
    flags: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    dropped: tuple[str, ...]
    tensor_parallel: int


def plan_deployment(resolved: ResolvedEngine) -> Deployment:
    """The same configuration for the official CUDA image.

    A local checkpoint is mounted; a hub snapshot is named by its id and revision and comes from the
    cache volume, because its files are links that a mount would break.
    """
    variant = resolved.variant
    model, revision, mounts = _place(variant.model_path, "WHET_MODEL_DIR")
    flags, dropped = _portable(_flags(resolved.argv), on_cpu=resolved.device == "cpu")
    if variant.speculation is not None and variant.speculation.draft_path is not None:
        draft, draft_revision, draft_mounts = _place(
            variant.speculation.draft_path, "WHET_DRAFT_DIR"
        )
        mounts += draft_mounts
        flags = [_with_draft(flag, draft, draft_revision) for flag in flags]
    env, dropped_env = _portable_env(dict(resolved.env), on_cpu=resolved.device == "cpu")
    words = tuple(word for name, value in flags for word in _words(name, value))
    parallel = dict(flags).get("tensor-parallel-size")
    return Deployment(
        variant=variant.name,
        model=model,
        revision=revision,
        served_model_name=resolved.served_model_name,
        flags=words,
        env=tuple(sorted(env.items())),
        mounts=tuple(mounts),
        dropped=tuple(dropped + dropped_env),
        tensor_parallel=int(parallel) if parallel else 1,
    )


_Flag = tuple[str, str | None]


def _words(name: str, value: str | None) -> tuple[str, ...]:
    return (f"--{name}",) if value is None else (f"--{name}", value)


def _flags(argv: tuple[str, ...]) -> list[_Flag]:
    """(name, value) of every flag in the command; None for a switch."""
    found: list[_Flag] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            takes = bool(words) and not words[0].startswith("--")
            found.append((word[2:], words.pop(0) if takes else None))
    return found


def _portable(flags: list[_Flag], *, on_cpu: bool) -> tuple[list[_Flag], list[str]]:
    kept, dropped = [], []
    for name, value in flags:
        if name in _OURS or name == "served-model-name":
            continue
        if on_cpu and name.removeprefix("no-") in _CPU_FLAGS:
            dropped.append(" ".join(_words(name, value)))
        else:
            kept.append((name, value))
    return kept, dropped


def _portable_env(env: dict[str, str], *, on_cpu: bool) -> tuple[dict[str, str], list[str]]:
    kept, dropped = {}, []
    for name, value in public_env(env).items():
        if name in _HOUSEKEEPING_ENV:
            continue
        if on_cpu and (name.startswith(_CPU_ENV_PREFIX) or name in _CPU_ENV):
            dropped.append(f"{name}={value}")
        else:
            kept[name] = value
    return kept, dropped


def _place(path: str, variable: str) -> tuple[str, str | None, list[Mount]]:
    """(what the engine is told, revision, mounts) for a checkpoint's path here."""
    parts = Path(path).parts
    hub = [part for part in parts if part.startswith("models--")]
    if hub and "snapshots" in parts:
        revision = parts[parts.index("snapshots") + 1]
        return hub[-1].removeprefix("models--").replace("--", "/"), revision, []
    if not path.startswith("/"):
        return path, None, []
    inside = str(_CONTAINER_MODELS / Path(path).name)
    if variable == "WHET_DRAFT_DIR":
        inside = str(_CONTAINER_MODELS / f"draft-{Path(path).name}")
    return inside, None, [Mount(variable=variable, host=path, container=inside)]


def _with_draft(flag: _Flag, draft: str, revision: str | None) -> _Flag:
    name, value = flag
    if name != "speculative-config" or value is None:
        return flag
    config = json.loads(value)
    config["model"] = draft
    if revision is not None:
        config["revision"] = revision
    return name, json.dumps(config)


def on_host(deployment: Deployment) -> Deployment:
    """The same with the host's own folders in place of the mounted ones, for ``serve.sh``."""
    flags, model = deployment.flags, deployment.model
    for mount in deployment.mounts:
        flags = tuple(word.replace(mount.container, mount.host) for word in flags)
        model = mount.host if model == mount.container else model
    return replace(deployment, flags=flags, model=model)
