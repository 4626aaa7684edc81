"""Where a server is, and the bytes of a request to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from whet.core.errors import UsageError

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A base URL in parts. ``prefix`` is the path below which ``/v1`` and ``/metrics`` lie."""

    host: str
    port: int
    tls: bool
    prefix: str
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, base_url: str, *, api_key: str | None = None) -> Endpoint:
        """From ``http://127.0.0.1:8000``; a trailing ``/v1`` is understood and dropped.

        Raises ``UsageError`` for anything that is not an http or https URL with a host.
        """
        try:
            parts = urlsplit(base_url)
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError as error:
            raise UsageError(
                f"{base_url!r} is not a URL ({error}); write http://host:port"
            ) from error
        if port is None or not parts.hostname:
            raise UsageError(f"{base_url!r} is not a server's URL; write http://host:port")
        return cls(
            host=parts.hostname,
            port=port,
            tls=parts.scheme == "https",
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            api_key=api_key,
        )

    @property
    def url(self) -> str:
        """The base URL for messages, without the key."""
        return f"{'https' if self.tls else 'http'}://{self._authority()}{self.prefix}"

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        common = {"Host": self._authority(), "User-Agent": "whet", "Accept": "*/*"}
        return (
            common if self.api_key is None else common | {"Authorization": f"Bearer {self.api_key}"}
        )

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """A whole POST request in bytes, made before the clock starts."""
        payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        lines = [f"POST {self.prefix}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers().items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}", "", ""]
        return "\r\n".join(lines).encode() + payload

    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"
