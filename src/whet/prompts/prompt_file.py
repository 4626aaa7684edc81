"""Prompt templates and golden chat requests: their stable text and the slots in it."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.core.errors import UsageError
from whet.prompts.text import part_text

GOLDEN: Final = (".json", ".jsonl")
TEMPLATES: Final = (".jinja", ".j2", ".txt", ".md", ".prompt")

_HIDDEN: Final = "\x1f"
"""Stands for a character that is not sent, such as one of a comment."""
_COMMENT: Final = re.compile(r"\s*\{#-.*?-#\}\s*|\s*\{#-.*?#\}|\{#.*?-#\}\s*|\{#.*?#\}", re.DOTALL)
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
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class NoChatRequest(UsageError):
    """Valid JSON that does not hold chat requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """Text [start, end) that is filled anew for every request.

    ``name`` is the variable, or the words before one without a name; None for a condition or loop.
    """

    start: int
    end: int
    name: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What a file sends with every request of one kind; offsets are characters of ``text``.

    ``name`` is the path, with ``#2`` for the second request of a file. ``raw`` is the file's part
    for this prompt. ``text`` is a template, its comments hidden, or the tools (JSON) and from
    ``messages_at`` on the messages before the user's last one. ``pieces`` are offsets in ``text``
    and in the file of its parts. ``holes`` are slots, statements and comments, in order.
    """

    name: str
    path: str
    raw: str
    text: str
    pieces: tuple[tuple[int, int], ...]
    messages_at: int
    slots: tuple[Slot, ...]
    holes: tuple[tuple[int, int], ...]

    @property
    def literal(self) -> str:
        """The text without its holes."""
        return "".join(self.text[start:end] for start, end in self.literals())

    @property
    def stable_end(self) -> int:
        """The offset of the first slot, or the end of the text."""
        return self.slots[0].start if self.slots else len(self.text)

    def literals(self) -> Iterator[tuple[int, int]]:
        """The stretches between the holes."""
        return between(self.holes, 0, len(self.text))

    def literal_offset(self, at: int) -> int:
        """The offset in ``literal`` of ``at`` in ``text``."""
        return at - sum(min(end, at) - start for start, end in self.holes if start < at)

    def file_offset(self, at: int) -> int:
        """The offset in the file; in JSON strings, escapes before it in the string are ignored."""
        start, there = self.pieces[bisect_right(self.pieces, (at, 1 << 62)) - 1]
        return there + at - start


def read_prompts(raw: str, path: str) -> tuple[Prompt, ...]:
    """The prompts of a file's text; ``UsageError`` where a golden file holds no chat request."""
    if path.lower().endswith(GOLDEN):
        return tuple(_read_golden(raw, path))
    start = 1 if raw.startswith("\ufeff") else 0
    comments = [match.span() for match in _COMMENT.finditer(raw, start)]
    text = _COMMENT.sub(lambda match: _HIDDEN * len(match[0]), raw[start:])
    return (
        _with_slots(
            name=path,
            path=path,
            raw=raw,
            text=text,
            pieces=((0, start),),
            messages_at=0,
            comments=[(at - start, end - start) for at, end in comments],
            jinja=path.lower().endswith((".jinja", ".j2")),
        ),
    )


def between(holes: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) outside of ``holes``, which are in order and apart."""
    for hole_start, hole_end in holes:
        yield start, max(hole_start, start)
        start = max(hole_end, start)
    yield start, end


def _read_golden(raw: str, path: str) -> Iterator[Prompt]:
    rows = list(_requests(raw, path))
    if not rows:
        raise NoChatRequest(f'{path} holds no chat request; write {{"messages": […]}} into it')
    at = 0
    for number, value in enumerate(rows, start=1):
        name = f"{path}#{number}" if len(rows) > 1 else path
        body = value.get("body", value) if isinstance(value, dict) else None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise NoChatRequest(f'{name} is no chat request; "messages" has to be a list')
        tools = json.dumps(body["tools"], ensure_ascii=False) + "\n" if body.get("tools") else ""
        text, pieces = tools, [(0, at)]
        for content in _stable_contents(body["messages"]):
            at = _find_string(raw, content, at)
            pieces.append((len(text), at))
            text += _HALF_PAIR.sub("\ufffd", content)
            text += "" if text.endswith("\n") else "\n"
        yield _with_slots(
            name=name,
            path=path,
            raw=json.dumps(body, ensure_ascii=False),
            text=text,
            pieces=tuple(pieces),
            messages_at=len(tools),
            comments=[],
            jinja=False,
        )


def _requests(raw: str, path: str) -> Iterator[Any]:
    start = 1 if raw.startswith("\ufeff") else 0
    is_lines = path.lower().endswith(".jsonl")
    spans = [m.span() for m in _LINE.finditer(raw, start)] if is_lines else [(start, len(raw))]
    for at, end in spans:
        if is_lines and not raw[at:end].strip():
            continue
        try:
            value = json.loads(raw[at:end])
        except json.JSONDecodeError as error:
            line = raw.count("\n", 0, at + error.pos) + 1
            raise UsageError(
                f"{path}:{line} is not valid JSON ({error.msg}); correct it"
            ) from error
        except RecursionError as error:
            raise UsageError(f"{path} nests JSON too deeply for a chat request") from error
        if isinstance(value, list) and not is_lines:
            yield from value
        else:
            yield value


def _find_string(raw: str, content: str, at: int) -> int:
    """The offset of the JSON string ``content`` after ``at``; ``at`` itself if it is not found."""
    forms = (json.dumps(content, ensure_ascii=False), json.dumps(content))
    places = (raw.find(form, at) for form in forms)
    return next((place + 1 for place in places if place >= 0), at)


def _stable_contents(messages: list[Any]) -> Iterator[str]:
    """The texts before the user's last message."""
    roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
    last = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else len(roles)
    for message in messages[:last]:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            if (text := part_text(part)) is not None:
                yield text


def _with_slots(*, comments: list[tuple[int, int]], jinja: bool, **fields: Any) -> Prompt:
    """``jinja``: only Jinja's slots count; else those of other template languages too."""
    text, start = fields["text"], fields["messages_at"]
    slots, holes = _find_jinja(text, start, jinja=jinja)
    if not jinja:
        outside = between(holes, start, len(text))
        plain = [slot for at, end in outside for slot in _placeholders(text, at, end)]
        slots = sorted([*slots, *plain], key=lambda slot: slot.start)
        holes += [(slot.start, slot.end) for slot in plain]
    return Prompt(slots=tuple(slots), holes=tuple(sorted([*holes, *comments])), **fields)


def _find_jinja(text: str, at: int, *, jinja: bool) -> tuple[list[Slot], list[tuple[int, int]]]:
    """Slots, and the holes of slots and statements; Mustache outside of Jinja files, too."""
    slots: list[Slot] = []
    holes: list[tuple[int, int]] = []
    unclosed = set[str]()
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
