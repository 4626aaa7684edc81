"""Find in prompt templates and golden requests what keeps a prefix cache from hitting."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.core.redact import SECRET, redact, starred
from whet.prompts.patterns import find_spans
from whet.prompts.prompt_file import GOLDEN, Prompt
from whet.prompts.rules import RULES, Finding, Level
from whet.prompts.text import find_json, tool_name

Tokenize = Callable[[str], Sequence[int]]
"""The end of each token of a text, in characters, ascending."""

_EXCERPT: Final = 60
_MAX_FINDINGS: Final = 20
"""Findings of one rule in one file."""
_SLOT_RULES: Final = {
    "date": "WHET001",
    "id": "WHET002",
    "version": "WHET003",
    "name": "WHET004",
    "text": "WHET005",
}
_BRANCH_RULE: Final = "WHET006"
_SPAN_RULES: Final = {"date": "WHET011", "id": "WHET012", "version": "WHET013", "name": "WHET014"}
# A number, a weekday, an hour or a standard's name is as often part of the instructions.
_WEAK: Final = re.compile(r"#?\d+|[A-Za-z]+|\d\d?:\d\d(?: ?[AaPp]\.?[Mm]\.?)?|[A-Z]{2,}-\d+")
_LONG: Final = re.compile(r"\S{400,}")
"""An encoded file, in which anything looks like an id."""
_UNSEEN: Final = {ord(c): " " for c in "\u00a0\u2007\u202f"} | {
    ord(c): "" for c in "\u00ad\u200b\u2060\ufeff"
}
_WHITE: Final = {
    "WHET024": re.compile(r"\r\n?"),
    "WHET025": re.compile(f"[{''.join(map(chr, _UNSEEN))}]+"),
    "WHET021": re.compile(r"(?<![ \t])[ \t]+(?=\r?\n|\r|\Z)"),
    "WHET023": re.compile(r"\r?\n(?:[ \t]*\r?\n){2,}"),
    "WHET022": re.compile(r"^(?: +\t|\t+ )[ \t]*", re.M),
}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_IGNORE: Final = re.compile(
    r"whet:\s*ignore(?P<whole>-file)?(?:\s*\[(?P<listed>[^\]\n]*)\]"
    r"|(?P<named>(?:[\s,]+WHET\d{3}\b)+))?"
)
_ONLY_COMMENT: Final = re.compile(r"\s*(?:\{#.*#\}|<!--.*-->|(?:#|//).*)\s*")
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(words.split())
    for kind, words in {
        "text": "content context doc docs document documents history input message messages "
        "prompt query question text",
        "date": "clock created currentdate currenttime date datetime day month now strftime time "
        "timestamp today updated weekday year",
        "id": "guid id ids nonce request requestid session sessionid trace traceid ulid userid "
        "uuid",
        "version": "build commit release revision version",
        "name": "account company customer email firstname fullname lastname name organisation "
        "organization user username",
    }.items()
}


def estimate_tokens(text: str) -> Sequence[int]:
    """Tokens of four characters each, without a tokenizer."""
    return range(4, len(text) + 1, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class LintOptions:
    """How to lint.

    ``min_text`` is the number of characters of stable text behind something that make it a
    finding. ``ignore`` holds rule ids.
    """

    block_size: int = 16
    min_text: int = 64
    ignore: frozenset[str] = frozenset()
    redact: bool = False
    tokenize: Tokenize = estimate_tokens

    def full(self, tokens: int) -> int:
        """``tokens`` without those of a last block that is not full."""
        return tokens // self.block_size * self.block_size


@dataclass(frozen=True, slots=True)
class _Hit:
    """A finding at [start, end) of a prompt's text."""

    rule: str
    start: int
    end: int
    lost: int | None = None
    level: Level | None = None
    note: str = ""


def lint_file(raw: str, prompts: Sequence[Prompt], options: LintOptions) -> list[Finding]:
    """The findings in one file's text and the prompts read from it, in order."""
    file = _File(raw, prompts[0].path, options)
    if raw.startswith("\ufeff"):
        file.add("WHET026", 0, 1)
    for match in SECRET.finditer(raw):
        file.add("WHET041", match.start(), match.start(), excerpt=False)
    for prompt in prompts:
        for check in (_check_slots, _check_spans, _check_white, _check_json):
            for hit in check(prompt, options):
                start, end = prompt.file_offset(hit.start), prompt.file_offset(hit.end)
                file.add(hit.rule, start, end, hit=hit)
    return file.limited()


class _File:
    """Makes findings of places in one file's text."""

    def __init__(self, raw: str, path: str, options: LintOptions) -> None:
        self._path, self._options = path, options
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(raw))]
        self._ignored = _ignored_lines(raw, self._starts)
        self._masked = starred(raw)
        self._findings: list[Finding] = []

    def add(
        self, rule: str, start: int, end: int, *, hit: _Hit | None = None, excerpt: bool = True
    ) -> None:
        """Add a finding at [start, end) of the file, unless it is ignored."""
        line = bisect_right(self._starts, start)
        ignored = self._ignored.get(line, frozenset()) | self._ignored.get(0, frozenset())
        if rule in ignored | self._options.ignore:
            return
        shown = excerpt and not self._options.redact
        note = f", {hit.note}" if hit is not None and hit.note else ""
        self._findings.append(
            Finding(
                rule=rule,
                level=(hit.level if hit is not None else None) or RULES[rule].level,
                path=self._path,
                line=line,
                column=start - self._starts[line - 1] + 1,
                message=f"{RULES[rule].summary}{note}; {self._fix(rule)}",
                excerpt=self._excerpt(line, start, end) if shown else None,
                lost_tokens=None if hit is None else hit.lost,
            )
        )

    def limited(self) -> list[Finding]:
        """The findings in order, at most 20 of a rule; the last of these counts the rest."""
        counts, seen = Counter(f.rule for f in self._findings), Counter[str]()
        limited = []
        for finding in sorted(self._findings, key=lambda f: (f.line, f.column, f.rule)):
            seen[finding.rule] += 1
            more = counts[finding.rule] - _MAX_FINDINGS
            if seen[finding.rule] == _MAX_FINDINGS and more > 0:
                message = f"{finding.message} (and {more:,} more in this file)"
                limited.append(replace(finding, message=message))
            elif seen[finding.rule] <= _MAX_FINDINGS:
                limited.append(finding)
        return limited

    def _fix(self, rule: str) -> str:
        if rule in _WHITE and self._path.lower().endswith(GOLDEN):
            return "correct it where the request is made"
        return RULES[rule].fix

    def _excerpt(self, line: int, start: int, end: int) -> str:
        first = max(self._starts[line - 1], start - 15)
        text = self._masked[first : max(end, start + 30)]
        shown = redact("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))
        return shown if len(shown) <= _EXCERPT else shown[: _EXCERPT - 1] + "…"


def _ignored_lines(raw: str, starts: Sequence[int]) -> dict[int, frozenset[str]]:
    """The rules that comments ignore, by line; 0 is the whole file."""
    ignored: dict[int, frozenset[str]] = {}
    for match in _IGNORE.finditer(raw):
        line = bisect_right(starts, match.start())
        end = starts[line] if line < len(starts) else len(raw)
        listed = re.findall(r"WHET\d{3}", match["listed"] or match["named"] or "")
        rules = frozenset(listed or (() if match["listed"] else RULES))
        lines = [0] if match["whole"] else [line]
        if not match["whole"] and _ONLY_COMMENT.fullmatch(raw[starts[line - 1] : end]):
            lines.append(line + 1)
        for each in lines:
            ignored[each] = ignored.get(each, frozenset()) | rules
    return ignored


def fix_white_space(raw: str, ignore: Collection[str] = ()) -> str:
    """A template's text with its white space corrected, except tabs.

    Rules of ``ignore`` and those that any comment in the file ignores are left as they are.
    """
    starts = [0, *(match.end() for match in _LINE_END.finditer(raw))]
    left = set(ignore).union(*_ignored_lines(raw, starts).values())
    changes: Mapping[str, Callable[[re.Match[str]], str]] = {
        "WHET024": lambda _match: "\n",
        "WHET025": lambda match: match.group().translate(_UNSEEN),
        "WHET021": lambda _match: "",
        "WHET023": lambda match: ("\r\n" if "\r" in match.group() else "\n") * 2,
    }
    if raw.startswith("\ufeff") and "WHET026" not in left:
        raw = raw[1:]
    for rule, change in changes.items():
        if rule not in left:
            raw = _WHITE[rule].sub(change, raw)
    return raw


def _check_slots(prompt: Prompt, options: LintOptions) -> Iterator[_Hit]:
    ends, total = options.tokenize(prompt.literal), len(prompt.literal)
    for slot in prompt.slots:
        at = prompt.literal_offset(slot.start)
        if total - at < options.min_text:
            continue
        rule = _BRANCH_RULE if slot.name is None else _SLOT_RULES[guess_kind(slot.name)]
        lost = options.full(len(ends)) - options.full(bisect_right(ends, at))
        note = f"{lost:,} tokens ({lost // options.block_size:,} blocks) differ with its value"
        level: Level | None = None if lost else "note"
        yield _Hit(rule, slot.start, slot.end, lost, level, note)


def _check_spans(prompt: Prompt, options: LintOptions) -> Iterator[_Hit]:
    ends, total = options.tokenize(prompt.literal), len(prompt.literal)
    text = list("\x1f" * len(prompt.text))
    for start, end in prompt.literals():
        text[start:end] = prompt.text[start:end]
    masked = _LONG.sub(lambda match: "\x1f" * len(match.group()), starred("".join(text)))
    for span in find_spans(masked):
        weak = _WEAK.fullmatch(prompt.text, span.start, span.end) is not None
        if total - prompt.literal_offset(span.end) < options.min_text or (
            weak and span.start < prompt.messages_at
        ):
            continue
        before = bisect_right(ends, prompt.literal_offset(span.start))
        lost = options.full(len(ends)) - options.full(before)
        level: Level | None = "note" if weak or not lost else None
        note = f"{lost:,} tokens are computed again when it changes"
        yield _Hit(_SPAN_RULES[span.kind], span.start, span.end, lost, level, note)


def _check_white(prompt: Prompt, options: LintOptions) -> Iterator[_Hit]:
    for rule, form in _WHITE.items():
        for match in form.finditer(prompt.text, prompt.messages_at):
            yield _Hit(rule, match.start(), match.end())
            if rule == "WHET024":
                break


def _check_json(prompt: Prompt, options: LintOptions) -> Iterator[_Hit]:
    for start, _end, value in find_json(prompt.text):
        if _unsorted(value):
            yield _Hit("WHET031", start, start + 1)
        if start < prompt.messages_at and isinstance(value, list):
            names = [tool_name(tool) for tool in value if isinstance(tool, dict)]
            if names != sorted(names):
                yield _Hit("WHET032", start, start + 1)


def _unsorted(value: Any) -> bool:
    """Whether an object in ``value`` has keys out of order."""
    if isinstance(value, dict):
        return list(value) != sorted(value) or any(map(_unsorted, value.values()))
    return isinstance(value, list) and any(map(_unsorted, value))


def guess_kind(name: str) -> str:
    """The kind of a variable by its name: date, id, version, name or text."""
    words = {word.lower() for word in _WORD.findall(name.partition("|")[0])}
    return next((kind for kind, known in _KINDS.items() if words & known), "text")
