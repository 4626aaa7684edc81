"""Translate errors of the model hub, and retry temporary ones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from whet.core.errors import UsageError, WhetError
from whet.core.redact import redact

T = TypeVar("T")

WAITS_S: Final = (2.0, 6.0)
_TEMPORARY: Final = (408, 429, 500, 502, 503, 504)
_STATUS_TEXT: Final = re.compile(r"HTTP status \w+ error \((\d{3})\b")
_LOGIN: Final = "run `hf auth login`, or set HF_TOKEN to a token with write access"


def require_login(repo: str) -> None:
    """Check the repository name and the token before any work.

    Raises ``UsageError`` for an invalid name or token, ``WhetError`` where the hub cannot be
    reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub import utils as untyped
    from huggingface_hub.errors import HFValidationError

    utils: Any = untyped
    try:
        utils.validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(
            f"{repo!r} cannot be the name of a repository; give owner/name in letters, digits, "
            "'-', '_' and '.', at most 96 of them"
        ) from error
    if get_token() is None:
        raise UsageError(f"no token for the hub is set; {_LOGIN}")
    with hub_errors(repo, again="try again later; nothing was uploaded"):
        retry(HfApi().whoami)


def hub_failures() -> tuple[type[Exception], ...]:
    """The errors of huggingface_hub and of its HTTP library.

    That library is httpx in version 1 and httpx2 in version 2; the hub's errors derive from its.
    """
    from huggingface_hub import errors

    beneath = next(cls for cls in errors.HfHubHTTPError.__mro__ if cls.__name__ == "HTTPError")
    return (beneath, OSError, ValueError, RuntimeError)


def retry(call: Callable[[], T]) -> T:
    """Call ``call``, again after a wait where the failure is temporary.

    For calls that the library does not retry itself, as it does uploads and downloads.
    """
    for wait_s in WAITS_S:
        try:
            return call()
        except hub_failures() as error:
            if not _is_temporary(error):
                raise
            time.sleep(wait_s)
    return call()


@contextmanager
def hub_errors(repo: str, *, again: str) -> Iterator[None]:
    """Translate a failure of the hub; ``again`` is the advice for a temporary one."""
    try:
        yield
    except hub_failures() as error:
        raise _translated(repo, error, again) from error


def _is_temporary(error: Exception) -> bool:
    status = _status(error)
    if status is not None:
        return status in _TEMPORARY
    return not isinstance(error, ValueError | RuntimeError)


def _status(error: BaseException | None) -> int | None:
    """The HTTP status of an error: LFS uploads wrap it, Xet uploads have it in the text only."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        match = _STATUS_TEXT.search(str(error))
        if match is not None:
            return int(match[1])
        error = error.__cause__
    return None


def _translated(repo: str, error: Exception, again: str) -> WhetError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    status = _status(error)
    if isinstance(error, OfflineModeIsEnabled):
        return UsageError("HF_HUB_OFFLINE is set, so nothing can be uploaded; unset it")
    if status == 401:
        return UsageError(f"the hub does not accept the token (401); {_LOGIN}")
    if status == 403:
        return UsageError(
            f"the token may not write to {repo} (403); use one with write access, or a name in "
            "a namespace of yours"
        )
    if status == 404:
        return UsageError(
            f"the hub has no {repo} that this token can see (404); correct the name, or {_LOGIN}"
        )
    if status is not None and status < 500 and status not in _TEMPORARY:
        return UsageError(
            f"the hub refused the upload to {repo} ({status}: {_first_line(error)}); correct "
            "that and push again"
        )
    return _temporary_failure(repo, status, error, again)


def _temporary_failure(repo: str, status: int | None, error: Exception, again: str) -> WhetError:
    if status is not None:
        return WhetError(f"the hub keeps answering {status} to the upload to {repo}; {again}")
    if isinstance(error, ValueError):
        return UsageError(f"the hub refused the upload to {repo} ({_first_line(error)})")
    return WhetError(
        f"the hub cannot be reached for the upload to {repo} ({_first_line(error)}); check the "
        f"network and HF_ENDPOINT, try HF_HUB_DISABLE_XET=1, and {again}"
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redact(" ".join(lines[:2]) if lines else type(error).__name__).rstrip(".:")
