"""Secrets never reach a log, a record or a report."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(
    r"TOKEN$|_TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|Bearer\s+[A-Za-z0-9._~+/=-]{8,})"
)
_MIN_LENGTH = 6


def secret_values(env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The values of environment variables whose names say that they are secret, longest first."""
    source = os.environ if env is None else env
    found = {v for k, v in source.items() if _SECRET_NAME.search(k) and len(v) >= _MIN_LENGTH}
    return tuple(sorted(found, key=len, reverse=True))


def redact(text: str, *, env: Mapping[str, str] | None = None) -> str:
    """``text`` with secrets replaced, both by known value and by form."""
    for value in secret_values(env):
        text = text.replace(value, "[redacted]")
    return _SECRET_VALUE.sub("[redacted]", text)


def public_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables whose names say that they are secret."""
    return {key: redact(value) for key, value in env.items() if not _SECRET_NAME.search(key)}
