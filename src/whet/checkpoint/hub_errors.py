"""Failures of the model hub, translated into one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from whet.core.errors import CheckpointError
from whet.core.redact import redact
from whet.core.store import NO_SPACE, translate_disk_errors


def hub_utils() -> Any:
    """Return the functions that huggingface_hub exports without types."""
    from huggingface_hub import utils

    return utils


@contextmanager
def hub_errors(ref: str, revision: str | None) -> Iterator[None]:
    """Turn a failure to read or download ``ref`` into ``CheckpointError`` with the fix.

    A full disk is a ``StorageError``. The library draws and logs nothing: its lines would break
    the console's.
    """
    from huggingface_hub import errors

    # The hub's errors derive from those of its HTTP library: httpx in version 1, httpx2 in 2.
    beneath: Any = next(cls for cls in errors.HfHubHTTPError.__mro__ if cls.__name__ == "HTTPError")
    hub_utils().disable_progress_bars()
    hub_utils().logging.set_verbosity_error()
    try:
        yield
    except (beneath, OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) in NO_SPACE:
            from huggingface_hub import constants

            with translate_disk_errors(Path(constants.HF_HUB_CACHE)):
                raise
        raise CheckpointError(_sentence(ref, revision, error)) from error


def _sentence(ref: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    for kind, words in (
        (errors.GatedRepoError, "is gated: accept its terms on its hub page, then set HF_TOKEN"),
        (errors.RevisionNotFoundError, f"has no revision {revision!r}; correct model.revision"),
        (
            errors.RepositoryNotFoundError,
            "is neither a folder here nor a model on the hub; correct the name, or set HF_TOKEN if "
            "it is private",
        ),
    ):
        if isinstance(error, kind):
            return f"{ref} {words}"
    responses = (getattr(each, "response", None) for each in _causes(error))
    status = next(
        (code for each in responses if (code := getattr(each, "status_code", None))), None
    )
    offline = any(isinstance(each, errors.OfflineModeIsEnabled) for each in _causes(error))
    if offline or (status is None and isinstance(error, errors.LocalEntryNotFoundError)):
        reached = "the hub cannot be reached; check the network"
        reason = "HF_HUB_OFFLINE is set; unset it" if offline else reached
        return f"{ref}{at} is not complete in the local cache and {reason}, or give a local folder"
    if status == HTTPStatus.UNAUTHORIZED:
        return f"the hub does not accept the token for {ref} (401); correct HF_TOKEN or unset it"
    lines = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
    stated = redact(lines or type(error).__name__).rstrip(".:")
    reason = stated if status is None else f"it answers {status}"
    return f"{ref}{at} cannot be fetched from the hub ({reason}); try again, or give a local folder"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__
