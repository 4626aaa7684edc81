"""A router over several servers; a program of its own that imports nothing of whet.

    python router.py --port 9000 --decode URL --decode URL           # in turn
    python router.py --port 9000 --prefill URL --decode URL [--hand-over]

With prefill servers a completion goes to one of them first, for a single token: it computes the
prompt and leaves the KV cache to the decode server. ``--hand-over`` passes the parameters that NIXL
needs for it (``kv_transfer_params``: vLLM's contract, tests/v1/kv_connector/nixl_integration).
Requests that score their prompt go to the decode server alone, which has to compute it anyway.
``/metrics`` is the decode servers', and the prefill servers' under ``prefill:``, with the tokens of
each server apart.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

_COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
_SCORES = ("prompt_logprobs", "echo")
_NOT_FOR_PREFILL = ("stream_options", "min_tokens", "max_completion_tokens")
_ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_OWN_TOKENS = re.compile(r"^vllm:(prompt|generation)_tokens_total\{[^}]*\} (\S+)", re.MULTILINE)
_MAX_BODY = 1 << 30


class Router:
    """Requests to the next server of each kind."""

    def __init__(self, prefill: list[str], decode: list[str], *, hand_over: bool) -> None:
        """Base URLs without ``/v1``."""
        self.prefill, self.decode, self.hand_over = prefill, decode, hand_over
        self._next_prefill, self._next_decode = itertools.cycle(prefill), itertools.cycle(decode)
        self.session: ClientSession

    async def connect(self, _: web.Application) -> AsyncIterator[None]:
        """Connections to the servers, as many at once as requests need."""
        timeout = ClientTimeout(total=None)
        async with ClientSession(connector=TCPConnector(limit=0), timeout=timeout) as session:
            self.session = session
            yield

    async def read(self, request: web.Request) -> web.Response:
        """GET of the first decode server."""
        async with self.session.get(self.decode[0] + request.path_qs) as reply:
            return web.Response(
                status=reply.status, body=await reply.read(), content_type=reply.content_type
            )

    async def metrics(self, _: web.Request) -> web.Response:
        """Every server's page."""
        pages = await asyncio.gather(*map(self._page, (*self.decode, *self.prefill)))
        decode, prefill = pages[: len(self.decode)], pages[len(self.decode) :]
        lines = [*decode, *(page.replace("vllm:", "prefill:") for page in prefill)]
        for role, own in (("decode", decode), ("prefill", prefill)):
            for number, page in enumerate(own):
                lines += [
                    f'router:{kind}_tokens_total{{source="{role}{number}"}} {value}'
                    for kind, value in _OWN_TOKENS.findall(page)
                ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _page(self, url: str) -> str:
        async with self.session.get(f"{url}/metrics") as reply:
            return await reply.text()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """POST: through a prefill server where there is one, then streamed from a decode server."""
        body = await request.read()
        if self.prefill and request.path in _COMPLETIONS:
            wanted = json.loads(body)
            if not any(wanted.get(name) for name in _SCORES):
                status, text = await self._prefill(request.path, wanted)
                if status != web.HTTPOk.status_code:
                    return web.Response(status=status, text=text, content_type="application/json")
                if params := json.loads(text).get("kv_transfer_params"):
                    body = json.dumps({**wanted, "kv_transfer_params": params}).encode()
        url = next(self._next_decode) + request.path_qs
        headers = {"Content-Type": "application/json"}
        async with self.session.post(url, data=body, headers=headers) as reply:
            out = web.StreamResponse(
                status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]}
            )
            await out.prepare(request)
            async for piece in reply.content.iter_any():
                await out.write(piece)
            await out.write_eof()
            return out

    async def _prefill(self, path: str, wanted: dict[str, Any]) -> tuple[int, str]:
        first = {name: value for name, value in wanted.items() if name not in _NOT_FOR_PREFILL}
        first |= {"max_tokens": 1, "stream": False}
        if self.hand_over:
            first["kv_transfer_params"] = _ASK
        async with self.session.post(next(self._next_prefill) + path, json=first) as reply:
            return reply.status, await reply.text()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", action="append", default=[])
    parser.add_argument("--decode", action="append", required=True)
    parser.add_argument("--hand-over", action="store_true")
    options = parser.parse_args()
    router = Router(options.prefill, options.decode, hand_over=options.hand_over)
    app = web.Application(client_max_size=_MAX_BODY)
    app.cleanup_ctx.append(router.connect)
    app.router.add_get("/metrics", router.metrics)
    app.router.add_get("/{path:.*}", router.read)
    app.router.add_post("/{path:.*}", router.answer)
    web.run_app(app, host="127.0.0.1", port=options.port, access_log=None, print=None)


if __name__ == "__main__":
    main()
