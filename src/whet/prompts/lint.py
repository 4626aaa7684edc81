"""Find in prompt templates what keeps a prefix cache from hitting."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.redact import SECRET, redact, starred
from whet.prompts.lines import find_spans
from whet.prompts.options import Level, LintOptions
from whet.prompts.prompt_file import Prompt

_TOKEN: Final = 4
"""Characters of a token, by estimate."""
_LEAST_BEHIND: Final = 64
"""Characters of stable text behind a finding at least."""
_EXCERPT: Final = 60
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, usual level, what it finds, and the fix."""

    id: str
    level: Level
    summary: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding. ``line`` and ``column`` count from 1, in characters.

    ``lost_tokens`` is what a request with another value computes again, in full blocks.
    """

    rule: str
    level: Level
    path: str
    line: int
    column: int
    message: str
    excerpt: str | None = None
    lost_tokens: int | None = None


_LAST: Final = "move it behind the stable text, best into the last message"

RULES: Final[Mapping[str, Rule]] = {
    rule.id: rule
    for rule in (
        Rule("WHET001", "error", "a date or time is filled in before stable text", _LAST),
        Rule("WHET002", "error", "an id is filled in before stable text", _LAST),
        Rule("WHET003", "warning", "a version is filled in before stable text", _LAST),
        Rule("WHET004", "error", "a name or address is filled in before stable text", _LAST),
        Rule("WHET005", "warning", "a variable is filled in before stable text", _LAST),
        Rule("WHET006", "note", "a condition or loop precedes stable text", _LAST),
        Rule("WHET011", "warning", "a date or time is written into stable text", _LAST),
        Rule("WHET012", "warning", "an id is written into stable text", _LAST),
        Rule("WHET013", "warning", "a version is written into stable text", _LAST),
        Rule("WHET014", "warning", "an e-mail address is written into stable text", _LAST),
        Rule("WHET041", "error", "a secret is written into the prompt", "remove and revoke it"),
    )
}


@dataclass(frozen=True, slots=True)
class _Match:
    """Text [start, end) of a template that a rule is about."""

    rule: str
    start: int
    end: int
    lost: int | None = None
    level: Level | None = None
    note: str = ""


def lint_prompt(prompt: Prompt, options: LintOptions) -> list[Finding]:
    """The findings in one template, in order."""
    size = options.block_size

    def lost_behind(at: int) -> int:
        """Tokens of full blocks that are computed again from a place in the template on."""
        before, end = prompt.literal_offset(at) // _TOKEN, len(prompt.literal) // _TOKEN
        return end // size * size - before // size * size

    starts = [0, *(match.end() for match in _LINE_END.finditer(prompt.raw))]
    ignored = _ignored_lines(prompt.raw, starts)
    masked = starred(prompt.raw)
    matches = [
        *(
            _Match("WHET041", secret.start(), secret.start())
            for secret in SECRET.finditer(prompt.raw)
        ),
        *_check_slots(prompt, options, lost_behind),
        *_check_spans(prompt, lost_behind),
    ]
    findings = []
    for match in matches:
        line = bisect_right(starts, match.start)
        silent = ignored.get(line, frozenset()) | ignored.get(0, frozenset())
        if match.rule in silent or match.rule in options.ignore:
            continue
        rule = RULES[match.rule]
        findings.append(
            Finding(
                rule=rule.id,
                level=match.level or rule.level,
                path=prompt.path,
                line=line,
                column=match.start - starts[line - 1] + 1,
                message=f"{rule.summary}{match.note}; {rule.fix}",
                excerpt=None
                if options.redact or rule.id == "WHET041"
                else _excerpt(masked, max(starts[line - 1], match.start - 15), match),
                lost_tokens=match.lost,
            )
        )
    return sorted(findings, key=lambda finding: (finding.line, finding.column, finding.rule))


def _excerpt(masked: str, first: int, match: _Match) -> str:
    text = masked[first : max(match.end, match.start + 30)]
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


def _check_slots(
    prompt: Prompt, options: LintOptions, lost_behind: Callable[[int], int]
) -> Iterator[_Match]:
    total = len(prompt.literal)
    for slot in prompt.slots:
        if total - prompt.literal_offset(slot.start) < _LEAST_BEHIND:
            continue
        rule = _BRANCH_RULE if slot.name is None else _SLOT_RULES[guess_kind(slot.name)]
        lost = lost_behind(slot.start)
        note = f", {lost:,} tokens ({lost // options.block_size:,} blocks) differ with its value"
        yield _Match(rule, slot.start, slot.end, lost, None if lost else "note", note)


def _check_spans(prompt: Prompt, lost_behind: Callable[[int], int]) -> Iterator[_Match]:
    total = len(prompt.literal)
    text = list("\x1f" * len(prompt.text))
    for start, end in prompt.literals():
        text[start:end] = prompt.text[start:end]
    masked = _LONG.sub(lambda match: "\x1f" * len(match.group()), starred("".join(text)))
    for span in find_spans(masked):
        if total - prompt.literal_offset(span.end) < _LEAST_BEHIND:
            continue
        weak = _WEAK.fullmatch(prompt.text, span.start, span.end) is not None
        lost = lost_behind(span.start)
        level: Level | None = "note" if weak or not lost else None
        note = f", {lost:,} tokens are computed again when it changes"
        yield _Match(_SPAN_RULES[span.kind], span.start, span.end, lost, level, note)


def guess_kind(name: str) -> str:
    """The kind of a variable by its name: date, id, version, name or text."""
    words = {word.lower() for word in _WORD.findall(name.partition("|")[0])}
    return next((kind for kind, known in _KINDS.items() if words & known), "text")
