"""Find in prompt templates and golden requests what will keep a prefix cache from hitting."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from whet.core.redact import SECRET, redact, starred
from whet.prefix.lock import (
    Prompt,
    Runs,
    Sent,
    Slot,
    Tokenize,
    between,
    estimate_tokens,
    read_golden,
    read_template,
)
from whet.prefix.masks import find_spans
from whet.prefix.parts import tool_name
from whet.prefix.sarif import RULES, Finding
from whet.prefix.units import find_json

GOLDEN: Final = (".json", ".jsonl")
TEMPLATES: Final = (".jinja", ".j2", ".txt", ".md", ".prompt")

_EXCERPT: Final = 60
_MOST: Final = 20  # findings of one rule in one prompt
_SLOT_RULES: Final = {
    "date": ("WHET001", "a date or time"),
    "id": ("WHET002", "an id"),
    "version": ("WHET003", "a version"),
    "name": ("WHET004", "a name or address"),
    "text": ("WHET005", "varying text"),
    "branch": ("WHET006", "a condition or loop"),
}
_SPAN_RULES: Final = {
    "date": ("WHET011", "a date or time"),
    "id": ("WHET012", "an id"),
    "version": ("WHET013", "a version"),
    "name": ("WHET014", "an e-mail address"),
}
# A number, a weekday, an hour or a standard's name is as often part of the instructions.
_WEAK: Final = re.compile(r"#?\d+|[A-Za-z]+|\d\d?:\d\d(?: ?[AaPp]\.?[Mm]\.?)?|[A-Z]{2,}-\d+")

_LONG: Final = re.compile(r"\S{400,}")  # an encoded file, in which anything looks like an id
_UNSEEN: Final = {ord(c): " " for c in "\u00a0\u2007\u202f"} | {
    ord(c): "" for c in "\u00ad\u200b\u2060\ufeff"
}
_WHITE: Final = (
    ("WHET024", re.compile(r"\r\n?"), "lines end with a carriage return"),
    ("WHET025", re.compile(f"[{''.join(map(chr, _UNSEEN))}]+"), "a space that no one sees as one"),
    ("WHET021", re.compile(r"(?<![ \t])[ \t]+(?=\r?\n|\r|\Z)"), "white space ends the line"),
    ("WHET023", re.compile(r"\r?\n(?:[ \t]*\r?\n){2,}"), "several blank lines follow each other"),
    ("WHET022", re.compile(r"^(?: +\t|\t+ )[ \t]*", re.M), "tabs and spaces indent one line"),
)
_WHITE_RULES: Final = ("WHET026", *(rule for rule, _form, _words in _WHITE))
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_IGNORE: Final = re.compile(
    r"whet:\s*ignore(?P<whole>-file)?(?:\s*\[(?P<listed>[^\]\n]*)\]"
    r"|(?P<named>(?:[\s,]+WHET\d{3}\b)+))?"
)
_ONLY_COMMENT: Final = re.compile(r"\s*(?:\{#.*#\}|<!--.*-->|(?:#|//).*)\s*")

_OPEN: Final = re.compile(r"\{\{|\{%")
_CLOSE: Final = {"{{": "}}", "{%": "%}"}
_END_RAW: Final = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_NAMED: Final = re.compile(r"\s*[-~#^/&>!{]?\s*[A-Za-z_][^{}\n]{0,200}")
_CONSTANT: Final = re.compile(
    r"""[-+\s]*(?:'[^']*'|"[^"]*"|[\d.]+|(?:bos|eos|pad|unk)_token|raise_exception\(.*)[-+\s]*""",
    re.DOTALL,
)
_PLACEHOLDER: Final = re.compile(
    r"\$\{(?P<shell>[A-Za-z_][\w.\[\]-]*)\}"
    r"|\{(?P<brace>[A-Za-z_][\w.\[\]]*)(?:![rsa])?(?::(?:%[^{}\n]{0,40}|[^{}\s\"']{0,40}))?\}"
    r"|(?<![\w\])}\\.])\{\d\}"
    r"|<<(?P<angle>(?!/?SYS\b)[A-Za-z_][\w .-]{0,60})>>"
    r"|(?<![%\w])%(?:\((?P<percent>\w+)\))?[sd](?!\w)"
)
_TEX: Final = re.compile(r"(?:\\[A-Za-z]+\*?(?:\{[^{}\n]*\})*|\^|(?<![A-Za-z0-9])[A-Za-z]_)$")
_LABEL: Final = re.compile(r"[A-Za-z][A-Za-z ]*[:=]?[ \"'(]*$")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class LintOptions:
    """How to lint.

    ``least_text`` is how many characters of stable text have to stand behind something for it to
    be told. ``ignore`` are rule ids. Both speeds are needed for seconds of prefill.
    """

    block_size: int = 16
    least_text: int = 64
    ignore: frozenset[str] = frozenset()
    redact: bool = False
    tokenize: Tokenize = estimate_tokens
    requests_per_day: float | None = None
    prefill_tokens_per_s: float | None = None

    def tokens(self, count: int) -> str:
        """A count of tokens in words: an estimate is told as one."""
        return f"{'about ' if self.tokenize is estimate_tokens else ''}{count:,} tokens"

    def full(self, tokens: int) -> int:
        """``tokens`` without those of a last block that is not full."""
        return tokens // self.block_size * self.block_size


def read_prompts(raw: str, path: str) -> tuple[Prompt, ...]:
    """The prompts of a file's text; ``UsageError`` where a golden file holds no chat request."""
    if path.lower().endswith(GOLDEN):
        return tuple(_with_slots(sent, jinja=False) for sent in read_golden(raw, path))
    jinja = path.lower().endswith((".jinja", ".j2"))
    return (_with_slots(read_template(raw, path), jinja=jinja),)


def lint_file(raw: str, prompts: Sequence[Prompt], options: LintOptions) -> list[Finding]:
    """The findings in one file's text and the prompts read from it, in order."""
    teller = _Teller(raw, prompts[0].sent.path, options)
    if raw.startswith("\ufeff"):
        teller.tell("WHET026", (0, 1), f"a byte order mark begins the file; {_mend('WHET026')}")
    for start, end in teller.secrets:
        words = f"a secret is written into the prompt; {_mend('WHET041')}"
        teller.tell("WHET041", (start, min(end, start + 1)), words, excerpt=False)
    for prompt in prompts:
        for check in (_check_slots, _check_spans, _check_white, _check_json):
            teller.within(prompt.sent, check(prompt, options))
    return teller.limited()


@dataclass(frozen=True, slots=True)
class _Told:
    """A finding's place in a prompt's text, before it is one."""

    rule: str
    start: int
    end: int
    words: str
    lost: int | None = None
    level: str | None = None


class _Teller:
    """Makes findings of places in one file's text."""

    def __init__(self, raw: str, path: str, options: LintOptions) -> None:
        self._raw, self._path, self._options = raw, path, options
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(raw))]
        self._ignored = _ignored_lines(raw, self._starts)
        self._masked = starred(raw)
        self.secrets = [match.span() for match in SECRET.finditer(raw)]
        self._found: list[tuple[Finding, tuple[int, int] | None]] = []

    def tell(self, rule: str, span: tuple[int, int], words: str, *, excerpt: bool = True) -> None:
        """Add a finding at [start, end) of the file's text."""
        (line, column), (end_line, end_column) = map(self._place, span)
        finding = Finding(
            rule=rule,
            level=RULES[rule].level,
            path=self._path,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            message=words,
        )
        shown = excerpt and not self._options.redact
        self._found.append((finding, span if shown else None))

    def within(self, sent: Sent, told: Iterable[_Told]) -> None:
        """Add findings of a prompt's text."""
        for each in told:
            start, end = sent.to_raw.at(each.start), sent.to_raw.at(each.end)
            self.tell(each.rule, (start, max(start, end)), each.words)
            level = each.level or RULES[each.rule].level
            finding, span = self._found[-1]
            self._found[-1] = replace(finding, level=level, lost_tokens=each.lost), span

    def limited(self) -> list[Finding]:
        """What no flag or comment silences, twenty of a rule; the last of these counts the rest."""
        told = [each for each in self._found if not self._ignores(each[0])]
        told.sort(key=lambda each: (each[0].line, each[0].column, each[0].rule))
        counts, seen, kept = Counter(f.rule for f, _span in told), Counter[str](), []
        for finding, span in told:
            seen[finding.rule] += 1
            if seen[finding.rule] > _MOST:
                continue
            more, words = counts[finding.rule] - _MOST, finding.message
            if seen[finding.rule] == _MOST and more > 0:
                words += f" (and {more:,} more in this file)"
            shown = None if span is None else self._excerpt(*span)
            kept.append(replace(finding, message=words, excerpt=shown))
        return kept

    def _ignores(self, finding: Finding) -> bool:
        rules = self._ignored.get(finding.line, frozenset()) | self._ignored.get(0, frozenset())
        return finding.rule in rules | self._options.ignore

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def _excerpt(self, start: int, end: int) -> str:
        line = self._starts[self._place(start)[0] - 1]
        text = self._masked[max(line, start - 15) : max(end, start + 30)]
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        shown = redact(shown)
        return shown if len(shown) <= _EXCERPT else shown[: _EXCERPT - 1] + "…"


def _mend(rule: str) -> str:
    return RULES[rule].mend


def _ignored_lines(raw: str, starts: Sequence[int]) -> dict[int, frozenset[str]]:
    """The rules that comments silence, by line; 0 is the whole file."""
    found: dict[int, frozenset[str]] = {}
    for match in _IGNORE.finditer(raw):
        line = bisect_right(starts, match.start())
        end = starts[line] if line < len(starts) else len(raw)
        listed = re.findall(r"WHET\d{3}", match["listed"] or match["named"] or "")
        rules = frozenset(listed or (() if match["listed"] else RULES))
        lines = [0] if match["whole"] else [line]
        if _ONLY_COMMENT.fullmatch(raw[starts[line - 1] : end]):
            lines.append(line + 1)
        for each in lines if not match["whole"] else [0]:
            found[each] = found.get(each, frozenset()) | rules
    return found


def fix_white_space(raw: str, ignore: Collection[str] = ()) -> str:
    """A template's text with its white space mended, but for tabs.

    A rule that any comment in the file silences is left as it is, as are those of ``ignore``.
    """
    starts = [0, *(match.end() for match in _LINE_END.finditer(raw))]
    left = set(ignore).union(*_ignored_lines(raw, starts).values())
    mends = {
        "WHET024": lambda _match: "\n",
        "WHET025": lambda match: match.group().translate(_UNSEEN),
        "WHET021": lambda _match: "",
        "WHET023": lambda match: ("\r\n" if "\r" in match.group() else "\n") * 2,
    }
    if raw.startswith("\ufeff"):
        raw = raw[1:] if "WHET026" not in left else raw
    for rule, form, _words in _WHITE:
        if rule in mends and rule not in left:
            raw = form.sub(mends[rule], raw)
    return raw


def _check_slots(prompt: Prompt, options: LintOptions) -> Iterator[_Told]:
    ends, total = options.tokenize(prompt.literal), len(prompt.literal)
    for slot in prompt.slots:
        at = prompt.to_literal.at(slot.start)
        if total - at < options.least_text:
            continue
        rule, what = _SLOT_RULES["branch" if slot.name is None else guess_kind(slot.name)]
        before = bisect_right(ends, at)
        lost = options.full(len(ends)) - options.full(before)
        words = (
            f"{what} stands before {options.tokens(len(ends) - before)} of stable text, and every "
            f"request with another value computes {lost:,} of them anew "
            f"({lost // options.block_size:,} blocks of {options.block_size})"
        )
        if options.requests_per_day and options.prefill_tokens_per_s:
            seconds = options.requests_per_day * lost / options.prefill_tokens_per_s
            words += f", up to {seconds:,.0f} s of prefill a day"
        level = None if lost else "note"
        yield _Told(rule, slot.start, slot.end, f"{words}; {_mend(rule)}", lost, level)


def _check_spans(prompt: Prompt, options: LintOptions) -> Iterator[_Told]:
    sent, runs, at = prompt.sent, prompt.to_literal, 0
    pieces = []
    for start, length in zip(runs.here, runs.lengths, strict=True):
        pieces.append("\x1f" * (start - at) + sent.text[start : start + length])
        at = start + length
    ends, total = options.tokenize(prompt.literal), len(prompt.literal)
    text = _LONG.sub(lambda match: "\x1f" * len(match.group()), starred("".join(pieces)))
    for span in find_spans(text):
        weak = _WEAK.fullmatch(sent.text, span.start, span.end) is not None
        place = runs.at(span.start)
        if total - runs.at(span.end) < options.least_text or (
            weak and span.start < sent.messages_at
        ):
            continue
        rule, what = _SPAN_RULES[span.kind]
        lost = options.full(len(ends)) - options.full(bisect_right(ends, place))
        words = (
            f"{what} is written into the stable text; whenever it changes, "
            f"{options.tokens(lost)} from it on are computed anew; {_mend(rule)}"
        )
        level = "note" if weak or not lost else None
        yield _Told(rule, span.start, span.end, words, lost, level)


def _check_white(prompt: Prompt, options: LintOptions) -> Iterator[_Told]:
    text, start = prompt.sent.text, prompt.sent.messages_at
    mendable = not prompt.sent.path.lower().endswith(GOLDEN)
    for rule, form, words in _WHITE:
        mend = _mend(rule) if mendable else "mend it where the request is made"
        for number, match in enumerate(form.finditer(text, start)):
            yield _Told(rule, match.start(), match.end(), f"{words}; {mend}")
            if rule == "WHET024" and number == 0:
                break


def _check_json(prompt: Prompt, options: LintOptions) -> Iterator[_Told]:
    if "[" * 30 in prompt.sent.text:  # no JSON that a person wrote, and slow to find that out
        return
    for start, _end, value in find_json(prompt.sent.text):
        if _unsorted(value):
            words = f"the keys of this JSON are not sorted; {_mend('WHET031')}"
            yield _Told("WHET031", start, start + 1, words)
        if start < prompt.sent.messages_at and isinstance(value, list):
            names = [tool_name(tool) for tool in value if isinstance(tool, dict)]
            if names != sorted(names):
                words = f"the tools are not sorted by name; {_mend('WHET032')}"
                yield _Told("WHET032", start, start + 1, words)


def _unsorted(value: Any) -> bool:
    """Whether an object in ``value`` has keys out of order."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            keys = list(each)
            if keys != sorted(keys):
                return True
            left += each.values()
        elif isinstance(each, list):
            left += each
    return False


def guess_kind(name: str) -> str:
    """The kind of what a variable holds, by its name: one of ``CAUSES``, or ``text``."""
    words = {word.lower() for word in _WORD.findall(name.partition("|")[0])}
    return next((kind for kind, known in _KINDS.items() if words & known), "text")


def _with_slots(sent: Sent, *, jinja: bool) -> Prompt:
    """``jinja``: only Jinja's own slots are ones."""
    slots, holes = _find_jinja(sent.text, sent.messages_at, jinja=jinja)
    if not jinja:
        kept = between(holes, sent.messages_at, len(sent.text))
        plain = [slot for start, end in kept for slot in _placeholders(sent.text, start, end)]
        slots = sorted([*slots, *plain], key=lambda slot: slot.start)
        holes = sorted([*holes, *((slot.start, slot.end) for slot in plain)])
    kept_runs = [(at, end - at) for at, end in between(holes, 0, len(sent.text))]
    lengths = tuple(length for _at, length in kept_runs)
    return Prompt(
        sent=sent,
        slots=tuple(slots),
        literal="".join(sent.text[at : at + length] for at, length in kept_runs),
        to_literal=Runs(
            here=tuple(at for at, _length in kept_runs),
            there=tuple(accumulate(lengths[:-1], initial=0)),
            lengths=lengths,
        ),
    )


def _find_jinja(text: str, at: int, *, jinja: bool) -> tuple[list[Slot], list[tuple[int, int]]]:
    """Slots, and the holes that they and the statements leave, both in order.

    Outside of Jinja files, Mustache is read too, and what else has two braces is text.
    """
    slots, holes, unclosed = [], [], set[str]()
    while (match := _OPEN.search(text, at)) is not None:
        start, mark, at = match.start(), match.group(), match.end()
        end = -1 if mark in unclosed else text.find(_CLOSE[mark], at)
        if end < 0:
            unclosed.add(mark)
            continue
        inner = text[at:end]
        if mark == "{{" and not (jinja or _NAMED.fullmatch(inner)):
            continue
        at = end + 2
        holes.append((start, at))
        word = inner.strip("-+~ \t\n").partition(" ")[0]
        if mark == "{%":
            if word == "raw" and (over := _END_RAW.search(text, at)):
                at = over.end()
                holes.append(over.span())
            elif word in ("for", "if"):
                slots.append(Slot(start=start, end=end + 2, name=None))
        elif word[:1] in ("#", "^"):
            slots.append(Slot(start=start, end=at, name=None))
        elif word[:1] not in ("/", "!", "") and not _CONSTANT.fullmatch(inner):
            slots.append(Slot(start=start, end=at, name=inner))
    return slots, holes


def _placeholders(text: str, start: int, end: int) -> Iterator[Slot]:
    """The slots of str.format, string.Template, percent and <<angle>> forms in [start, end)."""
    for match in _PLACEHOLDER.finditer(text, start, end):
        before = text[max(start, match.start() - 40) : match.start()]
        if match.group().startswith("{") and _TEX.search(before):
            continue
        name = next((group for group in match.groups() if group), None)
        if name is None:  # "Session id: %s"
            label = _LABEL.search(before)
            name = label.group() if label else ""
        yield Slot(start=match.start(), end=match.end(), name=name)
