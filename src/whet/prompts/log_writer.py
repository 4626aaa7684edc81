"""The log with the fixes of its causes, one OpenAI request per line."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from whet.core.errors import UsageError
from whet.core.store import open_output
from whet.prompts.analyse import PromptLog
from whet.prompts.causes import Variables
from whet.prompts.fixes import apply_fixes
from whet.prompts.records import CauseKind
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
