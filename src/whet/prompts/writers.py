"""Write a log with its fixes, or its lengths and shared blocks alone (Qwen Bailian's form)."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.store import open_output, write_atomic
from whet.core.units import ns_to_s
from whet.prompts.analyse import Prompt, PromptLog
from whet.prompts.cache import chain_hashes
from whet.prompts.causes import Variables
from whet.prompts.fixes import apply_fixes
from whet.prompts.records import CauseKind
from whet.requests.records import request_line

BLOCK_TOKENS: Final = 16
"""Tokens of a hash id, as in Bailian's own traces."""


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


def write_workload(prompts: Iterable[Prompt], path: Path) -> int:
    """Write times, lengths and shared blocks; return how many requests are left out.

    Times count from the first, and blocks are numbered as they come: nothing is in the file from
    which a text could be guessed but the lengths. An answer is as long as logged, else as its
    limit. Left out are requests without a token, a time or either length. Raises ``UsageError``
    where none is left, ``StorageError`` where the file cannot be written.
    """
    rows: list[str] = []
    numbers: dict[int, int] = {}
    first_ns, left_out = None, 0
    for prompt in prompts:
        request = prompt.request
        answer = request.output_tokens or request.max_tokens
        if not (len(prompt.ids) and answer) or request.at_ns is None:
            left_out += 1
            continue
        first_ns = request.at_ns if first_ns is None else first_ns
        blocks = chain_hashes(prompt.ids, BLOCK_TOKENS, salt=request.cache_salt)
        row = {
            "chat_id": len(rows),
            "timestamp": ns_to_s(request.at_ns - first_ns),
            "input_length": len(prompt.ids),
            "output_length": answer,
            "hash_ids": [numbers.setdefault(block, len(numbers)) for block in blocks],
        }
        rows.append(json.dumps(row))
    if not rows:
        raise UsageError(
            "no request of the log has a token, a time and the length of its answer",
            fix="give a log with times and token counts, or send it with whet bench --dataset-path",
        )
    write_atomic(path, "\n".join([*rows, ""]))
    return left_out
