"""Map a configuration that ran here to the official CUDA image, without its CPU settings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from math import ceil, prod
from pathlib import Path, PurePosixPath
from typing import Final

from whet.core.format import plural
from whet.core.hub import snapshot_of
from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine
from whet.core.redact import public_env
from whet.engines.compatibility import version_of
from whet.engines.deployment import Deployment, LeftOut, Mount
from whet.engines.vllm.flags import adapter_word, by_hub_id
from whet.engines.vllm.measuring import (
    Flag,
    env_reason,
    flag_reason,
    is_housekeeping,
    on_share,
)

IMAGE: Final = "vllm/vllm-openai"
_IMAGE_USER: Final = (2000, "/home/vllm")
"""The user that the image has beside root, and its home."""

_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?")
_CONTAINER_MODELS: Final = PurePosixPath("/models")
_NOT_IN_A_PATH = re.compile(r"[^A-Za-z0-9._,+-]")
_CPU_ENV_PREFIX: Final = "VLLM_CPU_"
_CPU_ENV: Final = frozenset({"OMP_NUM_THREADS", "VLLM_DISABLED_KERNELS"})
_CPU_FLAGS: Final = frozenset({"block-size", "dtype", "kv-cache-memory-bytes", "enforce-eager"})
"""Chosen for a CPU's kernels or memory (a block is 128 tokens there, 16 on a GPU).

float32 is the fastest on a CPU without bfloat16 arithmetic, and a GPU's 4-bit kernels refuse it.
"""

_OF_A_CPU: Final = "Left out: measured on a CPU, these settings mean nothing to a GPU"
_OURS: Final = frozenset({"host", "port", "model", "revision", "served-model-name"})
_NO_FILES: Final = frozenset({"root-path"})
"""Flags whose values begin with a slash and name no file."""
_PARALLEL: Final = ("tensor", "pipeline", "data")
_IN_FLIGHT: Final = "max-num-seqs"
_CPU_NOTE: Final = (
    "Measured on a CPU: the container is for a GPU, where latencies and costs differ, so measure "
    "again there."
)
_BUCKETS: Final = "custom-histogram-buckets"
SINCE: Final = "0.32"
"""The first version that is known to have the flag; 0.26 has not."""
DEFAULTS: Final[Mapping[str, tuple[float, ...]]] = {
    family: tuple(edges)
    for family, edges in json.loads(
        resources.files(__package__).joinpath("buckets.json").read_text(encoding="utf-8")
    ).items()
}
"""vllm/v1/metrics/buckets.py of 0.32, by family; TPOT has the edges of ``inter_token_latency``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A checkpoint in the container: a path, or a hub id with its revision."""

    name: str
    revision: str | None = None
    mount: Mount | None = None


_Left = list[tuple[str, str]]
"""(reason, setting) of what is not deployed."""


def plan_deployment(
    resolved: ResolvedEngine,
    *,
    image_tag: str | None = None,
    edges_s: Mapping[str, tuple[float, ...]] | None = None,
    as_measured: bool = False,
    load: Load | None = None,
) -> Deployment:
    """The same configuration for the official CUDA image (``engines.deployment``).

    A local checkpoint, draft or adapter is mounted; a hub snapshot is named by its id and revision
    and comes from the cache volume, because its files are links that a mount would break.
    """
    cap, held = _cap(_flags(resolved.argv), load)
    local_argv, local_env, local_left = _local(resolved, as_measured=as_measured, cap=cap)
    flags, env, left = _portable(resolved, as_measured=as_measured, cap=cap)
    flags, places, notes = _placed(flags, resolved)
    notes = [*notes, *held, *([_CPU_NOTE] if resolved.device == "cpu" else [])]
    release = _RELEASE.match(resolved.engine_version)
    tag = image_tag or (f"v{release[0]}" if release else "latest")
    known = _RELEASE.match(tag.removeprefix("v"))
    edges = bucket_edges(edges_s or {}, known[0] if known else resolved.engine_version)
    edge_words = () if _BUCKETS in dict(flags) else bucket_words(edges)
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
        words=(*(word for flag in flags for word in _words(flag)), *edge_words),
        env=tuple(sorted(env.items())),
        mounts=tuple(place.mount for place in places if place.mount is not None),
        gpus=prod(int(dict(flags).get(f"{kind}-parallel-size", ("1",))[0]) for kind in _PARALLEL),
        port=8000,
        user=user,
        home=home,
        health_path="/health",
        metrics_path="/metrics",
        probe_path="/v1/completions",
        probe_body=json.dumps({"model": name, "prompt": "Hi", "max_tokens": 1}),
        api_key_variable="VLLM_API_KEY",
        hub_token_variable="HF_TOKEN",
        local_argv=(*local_argv, *edge_words),
        local_env=tuple(local_env.items()),
        edges_s=edges,
        left_out=_left_out(left),
        local_left_out=_left_out(local_left),
        notes=tuple(notes),
    )


def _placed(
    flags: list[Flag], resolved: ResolvedEngine
) -> tuple[list[Flag], list[_Place], list[str]]:
    """The flags with every checkpoint where the container has it; the model's place is first."""
    variant = resolved.variant
    places, notes = [_place(variant.model_path, "WHET_MODEL_DIR")], list[str]()
    if variant.speculation is not None and variant.speculation.draft_path is not None:
        path = variant.speculation.draft_path
        draft = _place(path, "WHET_DRAFT_DIR", prefix="draft-")
        places.append(draft)
        flags = [_with_draft(flag, draft) for flag in flags]
    for at, (name, values) in enumerate(flags):
        if len(values) == 1 and values[0].startswith("/") and name not in _NO_FILES:
            variable = f"WHET_{name.upper().replace('-', '_')}"
            places.append(_place(values[0], variable, prefix=f"{name}-"))
            flags[at] = (name, (places[-1].name,))
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


def _words(flag: Flag) -> tuple[str, ...]:
    name, values = flag
    return (f"--{name}", *values)


def _flags(argv: tuple[str, ...]) -> list[Flag]:
    """(name, values) of every flag in the command; no value for a switch, several for a list."""
    flags: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            flags.append((word[2:], []))
        elif flags:
            flags[-1][1].append(word)
    return [(name, tuple(values)) for name, values in flags]


def _cap(flags: list[Flag], load: Load | None) -> tuple[int | None, list[str]]:
    """Return the requests that one engine may run, None as measured, and a sentence on it."""
    if load is None:
        return None, []
    if not load.slots:
        return None, [f"--{_IN_FLIGHT} is as measured: limit the {load} in your gateway."]
    engines = int(dict(flags).get("data-parallel-size", ("1",))[0])
    measured = " ".join(dict(flags).get(_IN_FLIGHT, ("vLLM's default",)))
    cap, held = ceil(load.slots / engines), f"{plural(load.slots, 'request')} in flight"
    with suppress(ValueError):  # a record holds whatever its file says
        if int(measured) <= cap:
            return None, [f"--{_IN_FLIGHT} {measured} is as measured, with {held}."]
    each = f" in each of {engines} engines" if engines > 1 else ""
    return cap, [f"--{_IN_FLIGHT} {cap}{each}, measured with {measured}, holds {held}: more wait."]


def _portable(
    resolved: ResolvedEngine, *, as_measured: bool, cap: int | None
) -> tuple[list[Flag], dict[str, str], _Left]:
    """Flags and variables for the container, and what it lacks of the measured ones."""
    on_cpu = resolved.device == "cpu"
    flags, env, left = _split(resolved, as_measured=as_measured, container=True, cap=cap)
    for flag in [flag for flag in flags if flag[0].removeprefix("no-") in _CPU_FLAGS and on_cpu]:
        flags.remove(flag)
        left.append((_OF_A_CPU, " ".join(_words(flag))))
    cpu_env = [name for name in env if name.startswith(_CPU_ENV_PREFIX) or name in _CPU_ENV]
    for name in cpu_env if on_cpu else ():
        left.append((_OF_A_CPU, f"{name}={env.pop(name)}"))
    return [flag for flag in flags if flag[0] not in _OURS], env, left


def _local(
    resolved: ResolvedEngine, *, as_measured: bool, cap: int | None
) -> tuple[tuple[str, ...], dict[str, str], _Left]:
    """The command and variables for the machine that measured, and what they lack."""
    flags, env, left = _split(resolved, as_measured=as_measured, container=False, cap=cap)
    argv = by_hub_id(resolved.argv)
    program = argv[: next(at for at, word in enumerate(argv) if word.startswith("--"))]
    return (*program, *(word for flag in flags for word in _words(flag))), env, left


def _split(
    resolved: ResolvedEngine, *, as_measured: bool, container: bool, cap: int | None
) -> tuple[list[Flag], dict[str, str], _Left]:
    """Flags and variables of the spec and its levers, and those of the measurement.

    With ``as_measured`` all of them but the housekeeping. ``cap`` replaces the measured limit
    of requests that run.
    """
    flags, env, left = list[Flag](), dict[str, str](), _Left()
    measured = _flags(by_hub_id(resolved.argv))
    shared = resolved.device != "cpu" and on_share(measured)
    for flag in measured:
        why = None if as_measured else flag_reason(flag, resolved, shared=shared)
        if why is None:
            flags.append(flag)
        else:
            left.append((why, " ".join(_words(flag))))
    if cap is not None:
        flags = [*(flag for flag in flags if flag[0] != _IN_FLIGHT), (_IN_FLIGHT, (str(cap),))]
    for name, value in public_env(dict(resolved.env)).items():
        if is_housekeeping(name, value):
            continue
        why = None if as_measured else env_reason(name, value, resolved, container=container)
        if why is None:
            env[name] = value
        else:
            left.append((why, f"{name}={value}"))
    return flags, env, left


def _left_out(left: _Left) -> tuple[LeftOut, ...]:
    reasons = dict.fromkeys(why for why, _ in left)
    return tuple(
        LeftOut(why=why, settings=tuple(text for other, text in left if other == why))
        for why in reasons
    )


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


def _with_draft(flag: Flag, draft: _Place) -> Flag:
    name, values = flag
    if name != "speculative-config" or not values:
        return flag
    config = json.loads(values[0])
    config["model"] = draft.name
    return name, (json.dumps(config),)


def _with_adapters(flag: Flag, adapters: dict[str, _Place]) -> Flag:
    if flag[0] != "lora-modules":
        return flag
    return flag[0], tuple(adapter_word(name, place.name) for name, place in adapters.items())


def bucket_edges(
    edges_s: Mapping[str, tuple[float, ...]], version: str
) -> dict[str, tuple[float, ...]]:
    """Every edge by family: the defaults, and ``edges_s`` where ``version`` can have them."""
    exact = version_of(version) >= version_of(SINCE)
    return {
        family: tuple(sorted({*default, *(edges_s.get(family, ()) if exact else ())}))
        for family, default in DEFAULTS.items()
    }


def bucket_words(edges: Mapping[str, tuple[float, ...]]) -> tuple[str, ...]:
    """The flag that sets ``edges``; families with the default ones are left out."""
    changed = {name: each for name, each in edges.items() if each != DEFAULTS[name]}
    return (f"--{_BUCKETS}", json.dumps(changed)) if changed else ()
