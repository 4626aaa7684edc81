"""Check a server's URL before it is used, printed or stored."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from whet.core.errors import UsageError

_SCHEMES = ("http", "https")


def split_server_url(url: str, what: str = "the URL") -> SplitResult:
    """The parts of ``http://host:port/path``. ``what`` names the flag or the key in messages.

    Raises ``UsageError`` for another scheme, a missing host, port 0, a query, a fragment, and a
    user name or password, which no message repeats.
    """
    if "@" in url:
        raise UsageError(
            f"{what} holds a user name or password",
            fix="leave it out and put the server's key into OPENAI_API_KEY",
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(
            f"{what} {url!r} is not valid ({error})", fix="write http://host:port"
        ) from error
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise UsageError(f"{what} {url!r} is not a server's URL", fix="write http://host:port")
    if port == 0:
        raise UsageError(f"{what} {url!r} has port 0", fix="write the port of the server")
    if "?" in url or "#" in url:
        raise UsageError(
            f"{what} {url!r} has a query or a fragment, which requests would not carry",
            fix="leave out everything from '?' or '#' on",
        )
    return parts
