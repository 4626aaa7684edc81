"""What ``whet prompts`` writes: the report, the log with fixes, and its lengths alone."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console

from whet.core.errors import UsageError
from whet.core.format import number, percent, plural
from whet.core.redact import one_line
from whet.core.store import open_output, write_atomic, write_json
from whet.core.units import NS_PER_S, ns_to_s
from whet.load.sharing import chain_hashes
from whet.prompts.analyse import Prompt, PromptLog
from whet.prompts.causes import Variables
from whet.prompts.fixes import ADVICE, FIXES, apply_fixes
from whet.prompts.records import CAUSES, CauseKind, Example, Fix, PromptAnalysis
from whet.report.document import (
    Bullets,
    Code,
    Column,
    Document,
    Node,
    Paragraph,
    Section,
    figure_columns,
    table,
)
from whet.report.text import DASH, format_time
from whet.report.writers.console import print_sections
from whet.report.writers.html import write_html
from whet.requests.records import request_line

BLOCK_TOKENS: Final = 16
"""Tokens of a hash id, as in Qwen Bailian's own traces."""
REDACTED: Final = "(redacted)"
Rows = Sequence[Sequence[str]]
_SIGNS: Final = str.maketrans({"\n": "⏎", "\t": "→", "\r": "␍", "\u00a0": "⍽"})


def write_report(analysis: PromptAnalysis, folder: Path) -> Document:
    """Write prompts.html and prompts.json; ``StorageError`` where that fails."""
    document = prompts_document(analysis)
    write_json(folder / "prompts.json", analysis)
    write_html(document, folder / "prompts.html")
    return document


def print_report(document: Document, console: Console) -> None:
    """Print the report; text of prompts is printed literally, without control characters."""
    facts = Paragraph(text="; ".join(document.facts), tone="muted")
    head = Section(id="prompts", title=document.title, group="Prompts", nodes=[facts])
    print_sections([head, *document.sections], console)


def prompts_document(analysis: PromptAnalysis) -> Document:
    """The whole report."""
    makers = (
        ("notes", "Notes", _overview),
        ("causes", "Causes", _causes),
        ("fixes", "Fixes", _fixes),
        ("left-out", "Left out of the log", _left_out),
    )
    return Document(
        title=headline(analysis),
        facts=setting(analysis),
        sections=[
            Section(id=id, title=title, group=title, nodes=nodes, on_console=True)
            for id, title, make in makers
            if (nodes := make(analysis))
        ],
    )


def headline(analysis: PromptAnalysis) -> str:
    """The hit rate as it is and with the fixes, in one or two sentences."""
    hits = analysis.hits
    if not hits.prompt_tokens:
        return "The log holds no prompt tokens."
    text = (
        f"A prefix cache finds {percent(hits.rate)} of {count_text(hits.prompt_tokens)} prompt "
        "tokens if it never evicts"
    )
    if analysis.fixes:
        return f"{text}. With the fixes below it finds {percent(analysis.best.rate)}."
    untried = any(cause.kind not in (*FIXES, "other") for cause in analysis.causes)
    return f"{text}. No fix {'was tried for the causes below' if untried else 'raises that'}."


def setting(analysis: PromptAnalysis) -> tuple[str, ...]:
    """Source, model, requests, block size and times."""
    words = [analysis.source, analysis.model, plural(analysis.requests, "request")]
    words.append(f"blocks of {plural(analysis.block_size, 'token')}")
    if analysis.first_at_ns is not None and analysis.last_at_ns is not None:
        words.append(f"{_when(analysis.first_at_ns)} to {_when(analysis.last_at_ns)}")
    return tuple(one_line(word) for word in words if word)


def _table(title: str, note: str, columns: Sequence[Column | str], rows: Rows) -> list[Node]:
    """One table and what to know of it; nothing without rows."""
    notes = [Paragraph(text=note, tone="muted")] if note else []
    return [table(title, columns, rows), *notes] if rows else []


def _overview(analysis: PromptAnalysis) -> list[Node]:
    nodes: list[Node] = [Paragraph(text=one_line(doubt), tone="warn") for doubt in analysis.doubts]
    if all(cause.kind == "other" for cause in analysis.causes):
        nodes.append(Paragraph(text="No named cause was detected.", tone="muted"))
    return nodes


def _causes(analysis: PromptAnalysis) -> list[Node]:
    note = (
        "A request counts once, by its first difference from its nearest predecessor. The tokens "
        "are an estimate of what both share behind that difference."
    )
    rows = [
        (
            CAUSES[cause.kind],
            one_line(cause.where) + (f", since {_when(cause.since_ns)}" if cause.since_ns else ""),
            f"{cause.requests:,}",
            f"{cause.tokens:,}",
            _share(cause.tokens, analysis.hits.prompt_tokens),
        )
        for cause in analysis.causes
    ]
    figures = figure_columns("requests", "tokens behind it", "of all")
    nodes = _table("Causes", note, ["cause", "where", *figures], rows)
    kinds = dict.fromkeys(cause.kind for cause in analysis.causes)
    advices = [f"{CAUSES[kind]}: {FIXES.get(kind) or ADVICE[kind]}" for kind in kinds]
    if advices:
        nodes.append(Bullets(items=advices))
    for cause in analysis.causes:
        if cause.examples:
            lines = "\n".join(map(example_line, cause.examples))
            place = f"{CAUSES[cause.kind]} ({one_line(cause.where)}), for example:"
            nodes += [Paragraph(text=place, tone="muted"), Code(text=lines)]
    return nodes


def _fixes(analysis: PromptAnalysis) -> list[Node]:
    every = [*analysis.fixes, *([analysis.together] if analysis.together else [])]
    note = (
        "The hit rate is that of the whole log replayed through the cache model with the fix. "
        "Fixes that do not raise it are left out. Moved text changes what the model reads: check "
        "the answers."
    )
    figures = figure_columns("requests", "hit rate", "gain", "prefill saved")
    rows = [_fix_row(fix, analysis) for fix in every]
    return _table("Fixes", note, ["fix", *figures], rows)


def _fix_row(fix: Fix, analysis: PromptAnalysis) -> tuple[str, ...]:
    saved = analysis.hits.missed - fix.hits.missed
    return (
        fix.title,
        f"{fix.requests:,}",
        percent(fix.hits.rate),
        f"{100 * (fix.hits.rate - analysis.hits.rate):+.2f} pt",
        f"{count_text(saved)} tokens",
    )


def _left_out(analysis: PromptAnalysis) -> list[Node]:
    rows = [(one_line(e.reason), one_line(e.first), f"{e.count:,}") for e in analysis.left_out]
    lines = figure_columns("lines")
    return _table("Left out of the log", "", ["reason", "first", *lines], rows)


def example_line(example: Example) -> str:
    """Both places, and ``…before[here | there]``."""
    places = f"{one_line(example.place)} and {one_line(example.other_place)}: "
    if example.before is None:
        return places + REDACTED
    texts = (example.before, example.here or "", example.there or "")
    before, here, there = map(visible, texts)
    return f"{places}…{before}[{here} | {there}]"


def visible(text: str) -> str:
    """``text`` on one line with signs for line ends and tabs; trailing blanks as dots."""
    bare = text.rstrip(" ")
    text = bare + "·" * (len(text) - len(bare))
    return "".join(c if c.isprintable() else "\ufffd" for c in text.translate(_SIGNS))


def count_text(count: int) -> str:
    """``15,000``, ``1.50 M``, ``2.10 G``."""
    for size, sign in ((10**9, "G"), (10**6, "M")):
        if abs(count) >= size:
            return f"{number(count / size)} {sign}"
    return f"{count:,}"


def _share(part: int, total: int) -> str:
    return percent(part / total) if total else DASH


def _when(at_ns: int) -> str:
    try:
        return format_time(datetime.fromtimestamp(at_ns / NS_PER_S, UTC).isoformat())
    except (OverflowError, OSError, ValueError):
        return f"{at_ns} ns"


def write_fixed_log(
    prompts: PromptLog, variables: Variables, kinds: Collection[CauseKind], path: Path
) -> None:
    """Write the log with the fixes. Raises ``UsageError`` if ``path`` is the log itself."""
    if os.path.realpath(path) == os.path.realpath(prompts.path):
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
