"""Check a server's URL before it is used, printed or stored."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from whet.core.errors import UsageError

_SCHEMES = ("http", "https")
_FORM: Final = "write http://host:port, an IPv6 address in brackets as http://[::1]:8000"
_UNSENDABLE: Final = re.compile(r"[^!-~]")
_API_VERSION: Final = re.compile(r"api-version=[\w.-]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_AFTER_BRACKET: Final = re.compile(r"(:\d*)?")


def split_server_url(url: str, what: str = "the URL", *, query: bool = False) -> SplitResult:
    """The parts of ``http://host:port/path``. ``what`` names the flag or the key in messages.

    Raises ``UsageError`` for another scheme, a missing host, port 0, a fragment, a query but
    Azure's ``api-version`` unless ``query`` allows it, a user name or password (never repeated).
    """
    if "@" in url:
        raise UsageError(
            f"{what} holds a user name or password",
            fix="leave it out and put the server's key into OPENAI_API_KEY",
        )
    try:
        parts = _split(url)
        port = _checked_port(parts)
    except ValueError as error:
        raise UsageError(f"{what} {url!r} is not valid ({error})", fix=_FORM) from error
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise UsageError(f"{what} {url!r} is not a server's URL", fix=_FORM)
    if port == 0:
        raise UsageError(f"{what} {url!r} has port 0", fix="write the port of the server")
    if "#" in url or ("?" in url and not (query or _API_VERSION.fullmatch(parts.query))):
        raise UsageError(
            f"{what} {url!r} has a query or a fragment, and requests carry only api-version",
            fix="leave it out; a server that needs it cannot be measured as it is",
        )
    return parts


def split_address(text: str, what: str) -> tuple[str, int]:
    """The host and the port of ``HOST:PORT``; ``UsageError`` for another form."""
    try:
        parts = _split(f"//{text}")
        port = _checked_port(parts)
        if not parts.hostname or port is None or parts.netloc != text:
            raise ValueError("a host or a port is missing")
    except ValueError as error:
        raise UsageError(
            f"{what} {text} is not HOST:PORT ({error})",
            fix="write 127.0.0.1:9464, an IPv6 address as [::1]:9464",
        ) from error
    return parts.hostname, port


def _split(url: str) -> SplitResult:
    if _UNSENDABLE.search(url):  # urlsplit drops some of them
        raise ValueError("write a host in its ASCII form, and other characters as %XX")
    host = re.split("[/?#]", url.partition("//")[2], maxsplit=1)[0]
    if host.startswith("[") and not _AFTER_BRACKET.fullmatch(host.partition("]")[2]):
        raise ValueError("only a port follows the bracket")  # which some versions do not see
    return urlsplit(url)


def _checked_port(parts: SplitResult) -> int | None:
    """The port, None without one; ``ValueError`` for a host that cannot be."""
    host = parts.hostname or ""
    if parts.netloc.startswith("["):
        ip_address(host.replace("%25", "%"))
    elif host and not all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split(".")):
        raise ValueError("its host is not a name or an address")
    return parts.port
