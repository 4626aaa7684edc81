"""What engines in a Python of their own share: questions to that Python, names, command lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.hub import snapshot_of
from whet.core.quote import shell_word, shell_words
from whet.core.records.engine import Scalar, Variant
from whet.core.redact import public_env
from whet.core.spec import EngineSpec
from whet.engines.failures import read_table

_ANSWER: Final = "ANSWER="
_VERSIONS: Final = """
import json
from importlib import metadata
def find(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print("ANSWER=" + json.dumps({name: find(name) for name in NAMES}))
"""


def engine_python(spec: EngineSpec) -> str:
    """The Python that has the engine: the spec's, else this one."""
    # Not resolved: the link inside a virtual environment is what selects its packages.
    return str(spec.python) if spec.python is not None else sys.executable


def ask_python(
    python: str, script: str, *, timeout_s: float, env: Mapping[str, str] | None = None
) -> str | None:
    """What ``script`` prints after ``ANSWER=``; None where it does not run."""
    try:
        done = subprocess.run(
            [python, "-c", script],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=os.sep,
            env={**os.environ, **(env or {})},
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    return answers[-1].removeprefix(_ANSWER) if answers else None


def installed_versions(python: str, names: Sequence[str]) -> dict[str, str | None] | None:
    """The version of each package that ``python`` has, without importing it; None: no answer."""
    answer = ask_python(python, _VERSIONS.replace("NAMES", repr(tuple(names))), timeout_s=60)
    if answer is None:
        return None
    versions: dict[str, str | None] = json.loads(answer)
    return versions


def all_words(
    args: Iterable[tuple[str, Scalar]], words_of: Callable[[str, Scalar], list[str]]
) -> list[str]:
    """The command-line words of every flag; one ``UsageError`` with all that cannot be set."""
    words, wrong = list[str](), list[str]()
    for key, value in args:
        try:
            words += words_of(key, value)
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("; ".join(wrong))
    return words


def refuse_owned(engine: str, key: str, name: str) -> None:
    """Raise ``UsageError`` for a flag that whet sets itself or must not have (``owned.csv``)."""
    if (instead := owned_flags(engine).get(name)) is not None:
        raise UsageError(f"engine flag {key!r} cannot be set here", fix=f"set {instead}")


@cache
def owned_flags(engine: str) -> dict[str, str]:
    """Flags that whet sets itself or must not have, each with what a user sets instead."""
    return {row["flag"]: row["instead"] for row in read_table(engine, "owned")}


def model_name(path: str) -> str:
    """A short name for requests: the folder's, or ``owner/name`` of a hub snapshot."""
    if (snapshot := snapshot_of(path)) is not None:
        return snapshot.hub_id
    return Path(path).name if path.startswith(("/", ".")) else path


def local_checkpoints(variant: Variant) -> bool:
    """Return whether the model and its draft are folders of this machine."""
    speculation = variant.speculation
    draft = None if speculation is None else speculation.draft_path
    return all(path.startswith("/") for path in (variant.model_path, draft) if path is not None)


def ambient_env(
    prefixes: tuple[str, ...], names: Iterable[str], quiet: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of this process that change an engine, so that they are recorded.

    Those with one of the ``prefixes`` or ``names``, without what whet sets itself (``quiet``).
    """
    steering = {
        key: value
        for key, value in os.environ.items()
        if (key.startswith(prefixes) or key in names) and key not in quiet
    }
    return public_env(steering)


def shell_line(argv: Sequence[str], env: Iterable[tuple[str, str]], *, port: int) -> str:
    """The start command for a shell."""
    own = [f"{key}={shell_word(value)}" for key, value in env]
    return " ".join([*own, shell_words(str(port) if word == "{port}" else word for word in argv)])
