"""A reverse proxy with a fixed port in front of engines that are started anew, and faults in it.

Faults that no flag of a real engine causes are made here, in its real answers: renamed
metrics, a wrong clock, another version, failed requests, numbers that are not numbers.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, web

Change = Callable[[str, int, bytes], tuple[int, bytes]]
"""(path, status, body) → (status, body) of a whole answer."""
_HOP: Final = {"content-length", "transfer-encoding", "connection", "content-encoding"}


@dataclass
class Proxy:
    """Where requests go and how answers are changed; may be changed while it runs."""

    port: int
    backends: list[str] = field(default_factory=list)
    change: Change | None = None
    clock_s: float = 0.0
    _turn: Any = field(default_factory=count)

    def start(self) -> None:
        """Serve on a thread of its own until the process ends."""
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True).start()
        ready.wait()

    async def _serve(self, ready: threading.Event) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self._session = ClientSession(timeout=ClientTimeout(total=300), auto_decompress=False)
        ready.set()
        await asyncio.Event().wait()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        backend = self.backends[next(self._turn) % len(self.backends)]
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        body = await request.read()
        try:
            async with self._session.request(
                request.method, backend + request.path_qs, headers=headers, data=body or None
            ) as answer:
                return await self._pass(request, answer)
        except (OSError, ClientError):
            return web.Response(status=502, text="no engine")

    async def _pass(self, request: web.Request, answer: Any) -> web.StreamResponse:
        headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
        if self.clock_s:
            date = datetime.now(UTC) + timedelta(seconds=self.clock_s)
            headers["Date"] = format_datetime(date, usegmt=True)
        if self.change is not None:
            status, body = self.change(request.path, answer.status, await answer.read())
            return web.Response(status=status, body=body, headers=headers)
        reply = web.StreamResponse(status=answer.status, headers=headers)
        await reply.prepare(request)
        async for piece in answer.content.iter_any():
            await reply.write(piece)
        await reply.write_eof()
        return reply


def in_metrics(pattern: str, text: str) -> Change:
    """Replace ``pattern`` in the exposition."""

    def change(path: str, status: int, body: bytes) -> tuple[int, bytes]:
        if path != "/metrics":
            return status, body
        return status, re.sub(pattern, text, body.decode(), flags=re.MULTILINE).encode()

    return change


def in_path(wanted: str, pattern: str, text: str) -> Change:
    """Replace ``pattern`` in the answers of one path."""

    def change(path: str, status: int, body: bytes) -> tuple[int, bytes]:
        if path != wanted:
            return status, body
        return status, re.sub(pattern, text, body.decode()).encode()

    return change
