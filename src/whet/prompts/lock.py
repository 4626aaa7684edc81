"""The lock file of ``whet prompts lint``: what each prompt was, and where it changed."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from whet.core.errors import UsageError
from whet.prompts.lint import Tokenize
from whet.prompts.prompt_file import Prompt

_VERSION: Final = 2
_DIGITS: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A prompt in the lock: tokens and sha256 of the whole and of the prefix before the first slot.

    ``lines`` has a short hash for each line of the text that is sent.
    """

    tokens: int
    prefix_tokens: int
    sha256: str
    prefix_sha256: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The prompts of a lock file by name, and how their tokens were counted."""

    block_size: int
    tokens_by: str
    prompts: Mapping[str, Entry]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How a prompt differs from its entry.

    ``at`` is the offset of the first changed line, None where only text changed that is not sent
    with every request. ``anew_tokens`` of its prefix are computed once more, in full blocks.
    """

    at: int | None
    anew_tokens: int


def make_entry(prompt: Prompt, tokenize: Tokenize) -> Entry:
    """The lock's entry of ``prompt``."""
    ends = tokenize(prompt.literal)
    return Entry(
        tokens=len(ends),
        prefix_tokens=bisect_right(ends, prompt.literal_offset(prompt.stable_end)),
        sha256=_sha256(prompt.raw),
        prefix_sha256=_sha256(prompt.text[: prompt.stable_end]),
        lines=tuple(_sha256(line)[:_DIGITS] for line in prompt.text.splitlines(keepends=True)),
    )


def compare(old: Entry, prompt: Prompt, tokenize: Tokenize, block_size: int) -> Change | None:
    """How ``prompt`` differs from ``old``; None where it does not."""
    new = make_entry(prompt, tokenize)
    if new.sha256 == old.sha256:
        return None
    at = _first_change(old.lines, new.lines, prompt.text)
    if at is None or new.prefix_sha256 == old.prefix_sha256:
        return Change(at=at, anew_tokens=0)
    ends = tokenize(prompt.literal)
    same = bisect_right(ends, prompt.literal_offset(at)) // block_size
    anew = max(new.prefix_tokens // block_size - same, 0)
    return Change(at=at, anew_tokens=anew * block_size)


def _first_change(old: Sequence[str], new: Sequence[str], text: str) -> int | None:
    pairs = enumerate(zip(old, new, strict=False))
    line = next((at for at, (one, two) in pairs if one != two), min(len(old), len(new)))
    if line == len(old) == len(new):
        return None
    return sum(map(len, text.splitlines(keepends=True)[:line]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dump_lock(lock: Lock) -> bytes:
    """The lock file: sorted JSON, a line for each hashed line."""
    data = {"version": _VERSION, "block_size": lock.block_size, "tokens_by": lock.tokens_by}
    prompts = {name: asdict(entry) for name, entry in lock.prompts.items()}
    text = json.dumps(data | {"prompts": prompts}, indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "surrogatepass")


def load_lock(data: bytes, path: str) -> Lock:
    """Read a lock file; ``UsageError`` for anything else or another version."""
    fix = "write it again with --write-lock"
    try:
        values = json.loads(data.decode("utf-8"))
        if values["version"] != _VERSION:
            raise UsageError(f"{path} is of lock version {values['version']!r}; {fix}")
        entries = {
            str(name): Entry(**entry | {"lines": tuple(map(str, entry["lines"]))})
            for name, entry in values["prompts"].items()
        }
        return Lock(
            block_size=int(values["block_size"]), tokens_by=values["tokens_by"], prompts=entries
        )
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno} is not valid JSON ({error.msg}); {fix}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no lock file of whet prompts lint; {fix}") from error
