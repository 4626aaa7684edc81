"""Remove secrets and control characters from foreign text before it is shown or stored."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

REDACTED: Final = "[redacted]"
_SECRET_NAME = re.compile(r"TOKEN(?!IZ)|KEY|SECRET|PASS|_PWD|CREDENTIAL", re.IGNORECASE)
_ENGINE_NAME = re.compile(r"(VLLM|CUDA|NCCL|OMP)_", re.IGNORECASE)
_ENGINE_SECRET_NAME = re.compile(
    r"_(TOKEN$|(API_?)?KEY(_|$)|SECRET|PASS(WORD|WD|PHRASE)?(_|$)|PWD$|CREDENTIAL)", re.IGNORECASE
)
"""Engine settings are often named after tokens or passes; only these words mark a secret."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_URL_LOGIN = re.compile(r"(://)[^\s\"'<>]+@")
UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff]"
)
"""Characters that a terminal or browser obeys or that are invisible: control, bidirectional,
zero-width, filler and tag characters. Joiners and variation selectors stay: scripts and emoji need
them.
"""
_MIN_LENGTH = 6
# In JSON a line end is written \n, whose n must not hide the word's beginning.
SECRET = re.compile(
    r"(?:(?<!\w)|(?<=\\[nrt]))(?:sk-(?=[\w-]*\d)[\w-]{8,}|sk-[\w-]{20,}|hf_[A-Za-z0-9]{8,}"
    r"|(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}|AKC[A-Za-z0-9]{10,}|AccountKey=[\w+/=]{40,}"
    r"|(?:gh[pousr]_|github_pat_|gl(?:pat|dt|ft|soat|rt|cbt|imt)-|GR1348941|xox[abeoprs]-)[\w-]{10,}"
    r"|(?:[rs]k_live_|npm_)[A-Za-z0-9]{20,}|(?:pypi-Ag|sq0csp-|AIza)[\w-]{35,}"
    r"|SG\.[\w-]{22}\.[\w-]{43}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27}|\d{8,10}:[\w-]{35}"
    r"|(?:AC|SK)[a-z0-9]{32}|[0-9a-z]{32}-us\d{1,2}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}(?:\.[\w-]*)?"
    r"|https?://(?:hooks\.slack\.com/services|api\.softlayer\.com/soap)/[\w./]+"
    r"|Bearer\s+(?=[^\s\d]*\d)[\w.~+/=-]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[^\"]){0,10000}(?:-----END [A-Z ]*-----)?"
)
"""Secrets by their form, also within longer texts: keys, tokens, private keys."""

_spec_values: set[str] = set()
"""Secrets of the spec that this process reads; those of its environment are read when needed."""


def is_env_name(name: str) -> bool:
    """Whether ``name`` can be that of an environment variable in a shell."""
    return _ENV_NAME.fullmatch(name) is not None


def is_secret_name(name: str) -> bool:
    """Whether an environment variable holds a secret, by its name."""
    pattern = _ENGINE_SECRET_NAME if _ENGINE_NAME.match(name) else _SECRET_NAME
    return pattern.search(name) is not None


def remember_secrets(env: Mapping[str, str]) -> None:
    """Redact the secret values of ``env`` from now on, wherever they appear."""
    _spec_values.update(value.strip() for value in secret_env(env).values())


def secret_values(env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The secret values of the environment and of the spec, longest first.

    A value that is the path of a file or folder here is not a secret.
    """
    source = os.environ if env is None else env
    values = {value.strip() for name, value in source.items() if is_secret_name(name)}
    values = {v for v in values if not (v.startswith("/") and os.path.exists(v))} | _spec_values
    return tuple(sorted((v for v in values if len(v) >= _MIN_LENGTH), key=len, reverse=True))


def redact(text: str, *, env: Mapping[str, str] | None = None) -> str:
    """``text`` with secrets replaced, both by known value and by form."""
    for value in secret_values(env):
        text = text.replace(value, REDACTED)
    return _URL_LOGIN.sub(rf"\1{REDACTED}@", SECRET.sub(REDACTED, text))


@lru_cache(maxsize=8192)  # a report repeats its names and labels thousands of times
def clean(text: str) -> str:
    """``text`` as ``printable`` shows it, secrets redacted."""
    return redact(printable(text))


def printable(text: str) -> str:
    """``text`` with U+FFFD in place of each character that could deceive its reader.

    A terminal obeys escape codes and a browser obeys bidirectional overrides: output of a model or
    an answer of a server may hold both.
    """
    return UNPRINTABLE.sub("\ufffd", text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """JSON ``text`` with such characters, which only its strings can hold, as escapes."""
    return UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """``text`` cleaned, every run of white space one blank."""
    return " ".join(clean(text).split())


def message_line(text: str) -> str:
    """``text`` cleaned, its lines as one; blanks stay, because a command may quote them."""
    return " ".join(clean(text).splitlines())


def redact_json(text: str) -> str:
    """JSON ``text`` with every known secret value replaced within its strings."""
    values = secret_values()
    if not any(json.dumps(value, ensure_ascii=False)[1:-1] in text for value in values):
        return text
    return json.dumps(hide_secrets(json.loads(text), values), indent=1, ensure_ascii=False)


def hide_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """A JSON value with every one of ``secrets`` replaced within its strings."""
    if isinstance(value, Mapping):
        return {key: hide_secrets(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [hide_secrets(item, secrets) for item in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
    return value


def starred(text: str) -> str:
    """``text`` with every secret as stars, of the same length, so that positions stay valid.

    To show part of a text, star it first and cut afterwards: part of a secret has no known form.
    """
    text = SECRET.sub(lambda match: "*" * len(match.group()), text)
    for value in secret_values():
        text = text.replace(value, "*" * len(value))
    return text


def secret_env(env: Mapping[str, str]) -> dict[str, str]:
    """The secret variables, by name or by value; only the engine process gets them.

    A value that a stored spec redacted is left out: the environment has it.
    """
    return {k: v for k, v in env.items() if _is_secret(k, v) and v != REDACTED}


def public_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without its secret variables and without names that no shell takes."""
    return {k: v for k, v in env.items() if is_env_name(k) and not _is_secret(k, v)}


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with ``[redacted]`` in place of secret values."""
    return {k: REDACTED if _is_secret(k, v) else v for k, v in env.items()}


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or redact(value) != value
