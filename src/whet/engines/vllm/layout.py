"""Several servers of one variant behind a router, started and ended together."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from threading import Event
from typing import Final

from whet.core.errors import EngineLostError, EngineStartError
from whet.core.flags import plain_args
from whet.core.gpus import VISIBLE_DEVICES_ENV
from whet.core.records.engine import Layout, ResolvedEngine, StartFacts
from whet.engines.launch import SpawnedServer, serve_process
from whet.engines.probe import is_healthy
from whet.engines.process import EngineProcess, free_port

SHARED_FOLDER: Final = "{shared}"
"""Stands in a command for a folder that all servers of the variant share while they run."""
_ROUTER: Final = Path(__file__).with_name("router.py")
_PARALLEL: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_SIDE_CHANNEL: Final = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_READY_S: Final = 60.0
_POLL_S: Final = 0.1


class LayoutServer:
    """The servers and their router as one; implements ``core.protocols.Server``."""

    def __init__(
        self, servers: Sequence[SpawnedServer], router: EngineProcess, start: StartFacts
    ) -> None:
        """Made by ``serve_layout`` only."""
        self._servers, self._router, self.start = servers, router, start
        self.model_name = servers[0].model_name

    @property
    def base_url(self) -> str:
        """The router's, without ``/v1``."""
        return f"http://127.0.0.1:{self.start.port}"

    def memory_bytes(self) -> int | None:
        """Of all servers."""
        sizes = [size for each in self._servers if (size := each.memory_bytes()) is not None]
        return sum(sizes) if len(sizes) == len(self._servers) else None

    def log_text(self) -> str:
        """What all of them print: they share one log, and the first server's is the longest."""
        return self._servers[0].log_text()

    def ensure_alive(self) -> None:
        """``EngineLostError`` where a server or the router ended."""
        for each in self._servers:
            each.ensure_alive()
        if self._router.exit_code() is not None:
            raise EngineLostError(
                "the router ended while serving", fix=f"see {self._router.log.name}"
            )


@contextmanager
def serve_layout(
    resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
) -> Iterator[LayoutServer]:
    """Start the servers one after the other, then the router, and yield them as one server.

    Each server gets the next devices that are visible. They come up in turn, prefill first: two
    NIXL agents that start together on one host were reported to hang (ai-dynamo/nixl#1668). Raises
    as ``serve_process`` does.
    """
    layout = resolved.variant.layout
    assert layout is not None
    began = time.monotonic()
    with ExitStack() as stack:
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-kv-"))
        servers = [
            stack.enter_context(serve_process(_one(resolved, number, shared), log=log, stop=stop))
            for number in range(layout.servers)
        ]
        router, port = _start_router(resolved, layout, [each.base_url for each in servers], log)
        stack.callback(router.stop)
        _await(router, port)
        start = replace(servers[0].start, ready_s=time.monotonic() - began, port=port)
        yield LayoutServer(servers, router, start)


def _one(resolved: ResolvedEngine, number: int, shared: str) -> ResolvedEngine:
    """One server's command and variables."""
    argv = tuple(word.replace(SHARED_FOLDER, shared) for word in resolved.argv)
    env = dict(resolved.env)
    if resolved.device == "cuda":
        env[VISIBLE_DEVICES_ENV] = ",".join(_devices(resolved, number))
    env[_SIDE_CHANNEL] = str(free_port())
    return replace(resolved, argv=argv, env=tuple(sorted(env.items())))


def _devices(resolved: ResolvedEngine, number: int) -> Sequence[str]:
    """The names of the GPUs of the server with this number, which takes the first that it needs.

    With prefill apart the others come behind: CUDA copies from a GPU of another process only if it
    is visible, and NIXL goes through TCP without a word otherwise (vllm-project/vllm#52607).
    """
    args = plain_args(resolved.variant)
    each = prod(int(args.get(name, 1)) for name in _PARALLEL)
    layout = resolved.variant.layout
    assert layout is not None
    visible = dict(resolved.env).get(VISIBLE_DEVICES_ENV, os.environ.get(VISIBLE_DEVICES_ENV))
    names = visible.split(",") if visible else [str(n) for n in range(each * layout.servers)]
    own = names[number * each : (number + 1) * each]
    return [*own, *(name for name in names if name not in own)] if layout.prefill else own


def _start_router(
    resolved: ResolvedEngine, layout: Layout, urls: Sequence[str], log: Path
) -> tuple[EngineProcess, int]:
    """The router runs in the engine's Python, which has aiohttp."""
    port = free_port()
    argv = [resolved.argv[0], str(_ROUTER), "--port", str(port)]
    argv += [word for url in urls[: layout.prefill] for word in ("--prefill", url)]
    argv += [word for url in urls[layout.prefill :] for word in ("--decode", url)]
    if layout.connector == "NixlConnector":
        argv.append("--hand-over")
    return EngineProcess(argv, env=os.environ, log=log), port


def _await(router: EngineProcess, port: int) -> None:
    deadline = time.monotonic() + _READY_S
    while not (router.listens_on(port) and is_healthy(f"http://127.0.0.1:{port}")):
        if router.exit_code() is not None or time.monotonic() > deadline:
            raise EngineStartError(
                "the router did not come up", fix=f"the end of {router.log.name} says why"
            )
        time.sleep(_POLL_S)
