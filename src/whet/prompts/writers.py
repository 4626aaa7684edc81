"""Write a log with its fixes, or as a ``whet-prefix-trace``: its structure without its text."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO

import numpy as np

from whet.checkpoint.encoder import Ids
from whet.core.errors import UsageError
from whet.core.store import open_output, write_atomic
from whet.prompts.analyse import Prompt, PromptLog
from whet.prompts.causes import Variables
from whet.prompts.fixes import apply_fixes
from whet.prompts.records import CauseKind
from whet.requests.prefix_trace_file import (
    PrefixRequest,
    PrefixTraceFacts,
    header_line,
)
from whet.requests.prefix_trace_file import request_line as trace_line
from whet.requests.writer import request_line


def write_fixed_log(
    prompts: PromptLog, variables: Variables, kinds: Collection[CauseKind], path: Path
) -> None:
    """Write the log with the fixes. Raises ``UsageError`` if ``path`` is the log itself."""
    if os.path.realpath(path) == os.path.realpath(prompts.question.log):
        raise UsageError(f"--fixed-log {path} is the log itself", fix="give another file")
    with open_output(path) as file:
        for prompt in prompts.prompts():
            line = request_line(apply_fixes(prompt.request, variables, kinds))
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


def write_prefix_trace(prompts: Iterable[Prompt], path: Path) -> PrefixTraceFacts:
    """Write what the prompts share, their lengths and times; no token and no hash of one.

    Prompts without a token are left out. Raises ``UsageError`` for a log without a token,
    ``StorageError`` where the file cannot be written.
    """
    lines: list[str] = []
    sessions: dict[str, int] = {}
    first_ns: int | None = None
    last_ns = left_out = tokens = shared_tokens = 0
    with tempfile.TemporaryFile() as spool:
        tree = _PrefixTree(spool)
        for prompt in prompts:
            request = prompt.request
            if not len(prompt.ids):
                left_out += 1
                continue
            if request.at_ns is not None:
                first_ns = request.at_ns if first_ns is None else first_ns
                last_ns = request.at_ns - first_ns
            parent, shared = tree.add(prompt.ids)
            row = PrefixRequest(
                length=len(prompt.ids),
                parent=parent,
                shared=shared,
                output_tokens=request.output_tokens,
                at_ns=None if request.at_ns is None else last_ns,
                session=None
                if request.session is None
                else sessions.setdefault(request.session, len(sessions)),
            )
            lines.append(trace_line(row))
            tokens, shared_tokens = tokens + row.length, shared_tokens + shared
    if not lines:
        raise UsageError(
            "there is no request with a token to write", fix="give a log that has some"
        )
    facts = PrefixTraceFacts(
        granularity=1,
        requests=len(lines),
        prompt_tokens=tokens,
        shared_tokens=shared_tokens,
        left_out=left_out,
    )
    write_atomic(path, "\n".join([header_line(facts), *lines, ""]))
    return facts


class _PrefixTree:
    """A radix tree of prompts; each request owns the tokens from its branch point on.

    The owned tokens are in a file, 4 bytes each; ``_branches`` maps (owner, depth, token) to the
    request that continues there.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._branches: dict[tuple[int | None, int, int], int] = {}
        self._starts, self._lengths, self._offsets = array("q"), array("q"), array("q")
        self._size = 0

    def add(self, ids: Ids) -> tuple[int | None, int]:
        """The earlier request that shares most of ``ids``, and how many tokens it shares."""
        ids = np.ascontiguousarray(ids, dtype=np.int32)
        owner, shared = None, 0
        while shared < len(ids):
            branch = self._branches.get((owner, shared, int(ids[shared])))
            if branch is None:
                break
            owner, shared = branch, shared + self._common(branch, ids[shared:])
        if shared < len(ids):
            self._branches[owner, shared, int(ids[shared])] = len(self._starts)
        self._starts.append(shared)
        self._lengths.append(len(ids) - shared)
        self._offsets.append(self._size)
        self._file.seek(self._size)
        self._size += self._file.write(ids[shared:].tobytes())
        return owner, shared

    def _common(self, owner: int, rest: Ids) -> int:
        count = min(self._lengths[owner], len(rest))
        self._file.seek(self._offsets[owner])
        differ = np.frombuffer(self._file.read(4 * count), dtype=np.int32) != rest[:count]
        return int(differ.argmax()) if differ.any() else count
