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
# In JSON a line end is written \n, whose n must not hide the word's beginning.
SECRET = re.compile(
    r"(?:(?<!\w)|(?<=\\[nrt]))(?:sk-(?=[\w-]*\d)[\w-]{8,}|sk-[\w-]{20,}|hf_[A-Za-z0-9]{8,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}\b|(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[\w-]{10,}"
    r"|AIza[\w-]{35}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*"
    r"|Bearer\s+(?=[^\s\d]*\d)[\w.~+/=-]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S]){0,10000}(?:-----END [A-Z ]*-----)?"
)
"""Secrets by their form, also within longer texts: keys, tokens, private keys."""


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


def starred(text: str) -> str:
    """``text`` with every secret as stars, of the same length: places in it stay what they are.

    To show a piece of a text, star the whole and cut then: a piece of a secret has no form.
    """
    text = SECRET.sub(lambda match: "*" * len(match.group()), text)
    for value in secret_values():
        text = text.replace(value, "*" * len(value))
    return text


def public_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables whose names say that they are secret."""
    return {key: redact(value) for key, value in env.items() if not _SECRET_NAME.search(key)}
