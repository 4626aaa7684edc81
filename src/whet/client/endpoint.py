"""Where a server is, what a request to it carries, and why it cannot be reached."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.outside import json_value
from whet.core.server_url import split_server_url

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PAGES: Final = re.compile(
    r"/(chat/completions|completions|responses|messages|embeddings|models|metrics|health|version)$"
)
_VERSION: Final = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?$")
_ROOT: Final = "/v1"
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING: Final = frozenset(
    {"connection", "content-length", "content-type", "expect", "te", "transfer-encoding", "upgrade"}
)
"""Headers by which the two sides agree where a request or an answer ends."""
KEY_VARIABLE = "OPENAI_API_KEY"
HEADERS_VARIABLE = "WHET_HTTP_HEADERS"
"""A JSON object of headers that every request carries."""
INSECURE_VARIABLE = "WHET_INSECURE_TLS"
"""1 leaves the certificate of a server unchecked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A base URL in parts. ``prefix`` is the path below which ``root`` and ``/metrics`` lie.

    ``root`` is the path of the API: ``/v1``, or what the URL has in its place. ``query`` follows
    each path: Azure's ``?api-version=…``.
    """

    host: str
    port: int
    tls: bool
    prefix: str
    root: str = _ROOT
    query: str = ""
    api_key: str | None = field(default=None, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """From ``http://127.0.0.1:8000``, with or without ``/v1`` (or ``/v4`` …).

        Of a whole URL as ``…/v1/chat/completions`` the page is dropped; its root may lack a
        version. The key is that of ``OPENAI_API_KEY``. Raises ``UsageError`` for a URL or a key
        that cannot be used.
        """
        parts = split_server_url(base_url)
        prefix, root = _split_path(parts.path.rstrip("/"))
        return cls(
            host=str(parts.hostname).replace("%25", "%"),
            port=parts.port or _DEFAULT_PORTS[parts.scheme],
            tls=parts.scheme == "https",
            prefix=prefix,
            root=root,
            query=f"?{parts.query}" if parts.query else "",
            api_key=_environment_key(),
            extra_headers=_environment_headers(),
        )

    @property
    def url(self) -> str:
        """The base URL, without the key; ``parse`` reads the same endpoint from it."""
        root = {_ROOT: "", "": "/completions"}.get(self.root, self.root)
        return f"{self._origin()}{self.prefix}{root}{self.query}"

    def url_of(self, path: str) -> str:
        """Return the URL of a page, for messages."""
        return self._origin() + self.path(path)

    def path(self, path: str) -> str:
        """Where the server has ``/v1/models`` or ``/metrics``."""
        if path.startswith(f"{_ROOT}/"):
            path = self.root + path.removeprefix(_ROOT)
        return self.prefix + path + self.query

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        host = self._authority(self.host.partition("%")[0])  # the zone is this machine's own
        usual = _DEFAULT_PORTS["https" if self.tls else "http"]
        headers = {"Host": host.removesuffix(f":{usual}"), "User-Agent": "whet", "Accept": "*/*"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        own = {name.lower() for name in self.extra_headers}
        return {k: v for k, v in headers.items() if k.lower() not in own} | dict(self.extra_headers)

    def tls_context(self) -> ssl.SSLContext | None:
        """How certificates are checked; None without TLS."""
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if os.environ.get(INSECURE_VARIABLE) == "1":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def get(self, path: str) -> bytes:
        """A whole GET request in bytes."""
        return self._head("GET", path, {})

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """A whole POST request in bytes, made before the clock starts."""
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        payload = text.encode(errors="backslashreplace")  # half of a surrogate pair as in JSON
        of_body = {"Content-Type": "application/json", "Content-Length": str(len(payload))}
        return self._head("POST", path, of_body) + payload

    def _head(self, method: str, path: str, more: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self.path(path)} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {**self.headers(), **more}.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def _origin(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self._authority(self.host)}"

    def _authority(self, host: str) -> str:
        host = f"[{host.replace('%', '%25')}]" if ":" in host else host
        return f"{host}:{self.port}"

    def why(self, error: OSError) -> str:
        """Why there is no connection, with the fix where TLS is the cause."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted: {error.verify_message}; set SSL_CERT_FILE to the "
                "certificate of its authority"
            )
        if isinstance(error, ssl.SSLError):
            return f"no TLS connection: {error.reason}; for a server without TLS write http://"
        return str(error) or type(error).__name__


def _split_path(path: str) -> tuple[str, str]:
    """The prefix of a server and the root of its API below it."""
    page = _PAGES.search(path)
    path = path if page is None else path[: page.start()]
    if (version := _VERSION.search(path)) is not None:
        return path[: version.start()], version[0]
    return path, "" if page is not None and page[1].endswith("completions") else _ROOT


def _environment_key() -> str | None:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"{KEY_VARIABLE} has a character that a header cannot carry (a blank, a line break or "
            "one that is not ASCII)",
            fix="copy the key again",
        )
    return key or None


def _environment_headers() -> dict[str, str]:
    try:
        headers = {str(k): str(v) for k, v in json_value(os.environ[HEADERS_VARIABLE]).items()}
    except KeyError:
        return {}
    except (ValueError, AttributeError) as error:
        raise UsageError(
            f"{HEADERS_VARIABLE} is not a JSON object", fix='write {"name": "value"}'
        ) from error
    for name, value in headers.items():
        if _TOKEN.fullmatch(name) is None or not (value.isascii() and value.isprintable()):
            raise UsageError(
                f"--header {name}: a header takes printable ASCII only", fix="correct it"
            )
        if name.lower() in _FRAMING:
            raise UsageError(f"--header {name}: whet sets it for each request", fix="leave it out")
    return headers
