"""Map a configuration that ran here to the official CUDA image, without its CPU settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Final

from whet.core.hub import snapshot_of
from whet.core.records.engine import ResolvedEngine
from whet.core.redact import public_env
from whet.engines.deployment import Deployment, Mount
from whet.engines.vllm import buckets
from whet.engines.vllm.hub_words import by_hub_id

IMAGE: Final = "vllm/vllm-openai"
_IMAGE_USER: Final = (2000, "/home/vllm")
"""The user that the image has beside root, and its home."""

_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?")
_CONTAINER_MODELS: Final = PurePosixPath("/models")
_NOT_IN_A_PATH = re.compile(r"[^A-Za-z0-9._,+-]")
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

_OURS: Final = frozenset({"host", "port", "model", "revision", "served-model-name"})
_PARALLEL: Final = ("tensor", "pipeline", "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A checkpoint in the container: a path, or a hub id with its revision."""

    name: str
    revision: str | None = None
    mount: Mount | None = None


_Flag = tuple[str, tuple[str, ...]]


def plan_deployment(
    resolved: ResolvedEngine,
    *,
    image_tag: str | None = None,
    edges_s: Mapping[str, tuple[float, ...]] | None = None,
) -> Deployment:
    """The same configuration for the official CUDA image (``engines.deployment``).

    A local checkpoint, draft or adapter is mounted; a hub snapshot is named by its id and revision
    and comes from the cache volume, because its files are links that a mount would break.
    """
    on_cpu = resolved.device == "cpu"
    local_argv, local_env = by_hub_id(resolved.argv), _public_env(resolved)
    flags, dropped = _portable(_flags(local_argv), on_cpu=on_cpu)
    env, dropped_env = _portable_env(local_env, on_cpu=on_cpu)
    flags, places, notes = _placed(flags, resolved)
    tag = image_tag or _tag(resolved.engine_version)
    edges = buckets.bucket_edges(edges_s or {}, _version(tag, resolved))
    bucket_words = () if buckets.FLAG in dict(flags) else buckets.bucket_words(edges)
    model, name = places[0], resolved.served_model_name
    at_revision = () if model.revision is None else ("--revision", model.revision)
    user, home = _IMAGE_USER
    return Deployment(
        variant=resolved.variant.name,
        engine=resolved.engine,
        engine_version=resolved.engine_version,
        device=resolved.device,
        image=f"{IMAGE}:{tag}",
        entrypoint=("vllm", "serve"),
        model=model.name,
        revision=model.revision,
        served_model_name=name,
        model_words=(model.name, *at_revision, "--served-model-name", name),
        words=(*(word for flag in flags for word in _words(flag)), *bucket_words),
        env=tuple(sorted(env.items())),
        mounts=tuple(place.mount for place in places if place.mount is not None),
        gpus=_gpus(dict(flags)),
        port=8000,
        user=user,
        home=home,
        health_path="/health",
        metrics_path="/metrics",
        probe_path="/v1/completions",
        probe_body=json.dumps({"model": name, "prompt": "Hi", "max_tokens": 1}),
        api_key_variable="VLLM_API_KEY",
        hub_token_variable="HF_TOKEN",
        local_argv=(*local_argv, *bucket_words),
        local_env=tuple(local_env.items()),
        edges_s=edges,
        dropped=(*dropped, *dropped_env),
        notes=tuple(notes),
    )


def _placed(
    flags: list[_Flag], resolved: ResolvedEngine
) -> tuple[list[_Flag], list[_Place], list[str]]:
    """The flags with every checkpoint where the container has it; the model's place is first."""
    variant = resolved.variant
    places, notes = [_place(variant.model_path, "WHET_MODEL_DIR")], list[str]()
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
    return flags, places, notes


def _tag(version: str) -> str:
    match = _RELEASE.match(version)
    return f"v{match[0]}" if match else "latest"


def _version(tag: str, resolved: ResolvedEngine) -> str:
    """The version of an image, the measured one where its tag does not say."""
    match = _RELEASE.match(tag.removeprefix("v"))
    return match[0] if match else resolved.engine_version


def _gpus(flags: Mapping[str, tuple[str, ...]]) -> int:
    sizes = (flags.get(f"{kind}-parallel-size", ("1",)) for kind in _PARALLEL)
    return prod(int(values[0]) for values in sizes)


def _public_env(resolved: ResolvedEngine) -> dict[str, str]:
    """What is part of the configuration and no secret."""
    env = public_env(dict(resolved.env))
    return {name: value for name, value in env.items() if name not in HOUSEKEEPING_ENV}


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
    for name, value in env.items():
        if on_cpu and (name.startswith(_CPU_ENV_PREFIX) or name in _CPU_ENV):
            dropped.append(f"{name}={value}")
        else:
            portable[name] = value
    return portable, dropped


def _place(path: str, variable: str, *, prefix: str = "") -> _Place:
    """Map a checkpoint's path on this machine to the container."""
    if (snapshot := snapshot_of(path)) is not None:
        return _Place(name=snapshot.hub_id, revision=snapshot.commit)
    if "/" in path and not path.startswith(("/", ".")):
        return _Place(name=path)  # a hub id; a published run has bare names of folders
    folder = _NOT_IN_A_PATH.sub("-", Path(path).name)
    host = path if "/" in path else f"./{path}"
    inside = str(_CONTAINER_MODELS / f"{prefix}{folder}")
    return _Place(name=inside, mount=Mount(variable=variable, host=host, container=inside))


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
