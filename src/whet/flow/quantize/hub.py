"""Translate errors of the model hub, and retry temporary ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from whet.checkpoint.hub_errors import (
    TEMPORARY,
    first_line,
    http_status,
    hub_failures,
    is_temporary,
)
from whet.core.errors import UsageError, WhetError

T = TypeVar("T")

WAITS_S: Final = (2.0, 6.0)
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
    with upload_errors(repo, again="try again later; nothing was uploaded"):
        retry(HfApi().whoami)


def retry(call: Callable[[], T]) -> T:
    """Call ``call``, again after a wait where the failure is temporary.

    For calls that the library does not retry itself, as it does uploads and downloads.
    """
    for wait_s in WAITS_S:
        try:
            return call()
        except hub_failures() as error:
            if not is_temporary(error):
                raise
            time.sleep(wait_s)
    return call()


@contextmanager
def upload_errors(repo: str, *, again: str) -> Iterator[None]:
    """Translate a failure of the hub; ``again`` is the advice for a temporary one."""
    try:
        yield
    except hub_failures() as error:
        raise _translated(repo, error, again) from error


def _translated(repo: str, error: Exception, again: str) -> WhetError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    status = http_status(error)
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
    if status is not None and status < 500 and status not in TEMPORARY:
        return UsageError(
            f"the hub refused the upload to {repo} ({status}: {first_line(error)}); correct "
            "that and push again"
        )
    return _temporary_failure(repo, status, error, again)


def _temporary_failure(repo: str, status: int | None, error: Exception, again: str) -> WhetError:
    if status is not None:
        return WhetError(f"the hub keeps answering {status} to the upload to {repo}; {again}")
    if isinstance(error, ValueError):
        return UsageError(f"the hub refused the upload to {repo} ({first_line(error)})")
    return WhetError(
        f"the hub cannot be reached for the upload to {repo} ({first_line(error)}); check the "
        f"network and HF_ENDPOINT, try HF_HUB_DISABLE_XET=1, and {again}"
    )
