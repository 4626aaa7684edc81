"""Attach to an external server: any URL that speaks the OpenAI API.

whet neither starts nor stops it, and cannot read its log or memory. Its endpoints and counters are
the only evidence.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

from whet.client import Endpoint
from whet.client.calls import EXTRA_BODY, body_fields
from whet.core.errors import EngineLostError, EngineStartError, UsageError
from whet.core.outside import json_value
from whet.core.records.engine import ResolvedEngine, StartFacts, Variant
from whet.core.server_url import split_server_url
from whet.core.spec import EngineSpec
from whet.engines.probe import NoAnswer, generate_canary, json_page, request

UNKNOWN = "unknown"
_OF_REQUESTS = ("model", "extra_body")
_CANARY_S = 120.0
_PAGE_S = 10.0


class RemoteServer:
    """An external server; implements ``core.protocols.Server``."""

    def __init__(self, resolved: ResolvedEngine, base_url: str, start: StartFacts) -> None:
        """Made by ``RemoteEngine.serve`` only."""
        self.base_url = base_url
        self.model_name = resolved.served_model_name
        self.start = start

    def memory_bytes(self) -> int | None:
        """Unknown from outside."""
        return None

    def log_text(self) -> str:
        """Unknown from outside."""
        return ""

    def ensure_alive(self) -> None:
        """Raise ``EngineLostError`` once the server no longer answers."""
        json_page(self.base_url, "/v1/models", timeout_s=_PAGE_S)


class RemoteEngine:
    """The attach-only adapter."""

    name = "openai"

    def version(self, spec: EngineSpec) -> str:
        """The version that ``/version`` reports, else ``unknown``."""
        try:
            page = json_page(_base_url(spec), "/version", timeout_s=_PAGE_S)
        except EngineLostError as error:
            raise EngineStartError(
                f"nothing answers at {spec.url} ({error})",
                fix="start the server or correct engine.url",
            ) from error
        return str(page.get("version", UNKNOWN))

    def resolve(self, variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        """The address and the model's name there: ``args.model``, else the first one listed.

        ``args.extra_body`` is JSON that is put into every timed request; null leaves a field out.
        """
        base_url = _base_url(spec)
        version = self.version(spec)
        args = dict(variant.engine_args)
        named, fields = args.get("model"), args.get("extra_body")
        if fields is not None:
            body_fields(str(fields), EXTRA_BODY)
        settings = tuple(arg for arg in variant.engine_args if arg[0] not in _OF_REQUESTS)
        return ResolvedEngine(
            variant=replace(variant, engine_args=settings),
            engine=self.name,
            engine_version=version,
            device="remote",
            served_model_name=str(named) if named else _first_model(base_url),
            argv=(),
            env=(),
            serve_line=f"# attached to {base_url}, an external server",
            ready_timeout_s=spec.ready_timeout_s,
            url=base_url,
            extra_body=None if fields is None else str(fields),
        )

    def unsupported(self, resolved: ResolvedEngine) -> str | None:
        """A layout is for servers that whet starts; other limits of an external one are unknown."""
        if resolved.variant.layout is None:
            return None
        return "an attached server is one address, whatever is behind it; leave layout out"

    @contextmanager
    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: Event | None = None
    ) -> Iterator[RemoteServer]:
        """Attach once the canary has answered. ``log`` and ``stop`` are not used."""
        assert resolved.url is not None
        began = time.monotonic()
        timeout_s = min(_CANARY_S, resolved.ready_timeout_s)
        try:
            text = generate_canary(resolved.url, resolved.served_model_name, timeout_s=timeout_s)
        except NoAnswer as error:
            raise EngineStartError(
                f"the server at {resolved.url} cannot generate ({error})",
                fix="fix it, or correct the model's name",
            ) from error
        start = StartFacts(
            variant=resolved.variant.name,
            ready_s=time.monotonic() - began,
            canary_text=text,
            port=Endpoint.parse(resolved.url).port,
            pid=None,
            attempts=1,
        )
        yield RemoteServer(resolved, resolved.url, start)


def _base_url(spec: EngineSpec) -> str:
    if spec.url is None:
        raise UsageError(
            "the engine 'openai' needs an address", fix="set engine.url (http://host:port)"
        )
    split_server_url(spec.url, "engine.url")
    return Endpoint.parse(spec.url).url


def _first_model(base_url: str) -> str:
    try:
        status, text = request(base_url, "/v1/models", timeout_s=_PAGE_S)
        if status == http.client.UNAUTHORIZED:
            raise EngineStartError(
                f"{base_url} refuses the key (401)", fix="put the right one into OPENAI_API_KEY"
            )
        return str(json_value(text)["data"][0]["id"])
    except (NoAnswer, ValueError, KeyError, IndexError, TypeError) as error:
        raise EngineStartError(
            f"{base_url} lists no model", fix="name it with engine.args.model"
        ) from error
