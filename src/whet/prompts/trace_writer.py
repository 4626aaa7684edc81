"""Write a log as a trace of lengths and shared blocks, without its text, in Qwen Bailian's form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.store import write_atomic
from whet.core.units import ns_to_s
from whet.prompts.analyse import Prompt
from whet.prompts.blocks import chain_hashes

BLOCK_TOKENS: Final = 16
"""Tokens of a hash id, as in Bailian's own traces."""


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
