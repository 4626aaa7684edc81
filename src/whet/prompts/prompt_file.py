"""Prompt templates: their stable text and the slots in it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError

TEMPLATES: Final = (".jinja", ".j2", ".txt", ".md", ".prompt")

_MAX_BYTES: Final = 16 << 20
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
    """A template: its text with comments hidden, of the file's length.

    ``holes`` are slots, statements and comments, in order.
    """

    path: str
    raw: str
    text: str
    slots: tuple[Slot, ...]
    holes: tuple[tuple[int, int], ...]

    @property
    def literal(self) -> str:
        """The text without its holes."""
        return "".join(self.text[start:end] for start, end in self.literals())

    def literals(self) -> Iterator[tuple[int, int]]:
        """The stretches between the holes."""
        return between(self.holes, 0, len(self.text))

    def literal_offset(self, at: int) -> int:
        """The offset in ``literal`` of ``at`` in ``text``."""
        return at - sum(min(end, at) - start for start, end in self.holes if start < at)


def read_prompt(raw: str, path: str) -> Prompt:
    """The prompt of a template's text. In a Jinja file only Jinja's slots count."""
    comments = [match.span() for match in _COMMENT.finditer(raw)]
    text = _COMMENT.sub(lambda match: _HIDDEN * len(match[0]), raw)
    jinja = path.lower().endswith((".jinja", ".j2"))
    slots, holes = _find_jinja(text, 0, jinja=jinja)
    if not jinja:
        outside = between(holes, 0, len(text))
        plain = [slot for at, end in outside for slot in _placeholders(text, at, end)]
        slots = sorted([*slots, *plain], key=lambda slot: slot.start)
        holes += [(slot.start, slot.end) for slot in plain]
    return Prompt(
        path=path, raw=raw, text=text, slots=tuple(slots), holes=tuple(sorted([*holes, *comments]))
    )


def find_templates(paths: Sequence[Path], problems: list[str]) -> list[Path]:
    """Each template once, in order; paths without one are added to ``problems``."""
    templates: dict[Path, Path] = {}
    kinds = ", ".join(TEMPLATES)
    for given in paths:
        files = [given]
        if given.is_dir():
            files = [path for path in _walk(given) if path.suffix.lower() in TEMPLATES]
            if not files:
                problems.append(f"{given} holds no prompt template; they end with {kinds}")
        elif given.exists() and given.suffix.lower() not in TEMPLATES:
            problems.append(f"{given} is not a prompt template; they end with {kinds}")
            continue
        for path in files:
            templates.setdefault(path.resolve(), path)
    return list(templates.values())


def _walk(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f[:1] != "." and f != "node_modules")
        yield from (Path(at) / name for name in sorted(names))


def read_template(path: Path) -> str:
    """A file's text; ``UsageError`` where it is not UTF-8 text of at most 16 MiB."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise UsageError(f"{path} is not a file", fix="give a prompt template")
        if facts.st_size > _MAX_BYTES:
            raise UsageError(f"{path} is larger than 16 MiB", fix="split it or leave it out")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"no file or folder at {path}", fix="check the path") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror})", fix="check its permissions"
        ) from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{path} is UTF-16", fix="save it as UTF-8")
    if b"\0" in data:
        raise UsageError(f"{path} is a binary file, not a prompt template")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 (byte {error.start})", fix="save it as UTF-8"
        ) from error


def between(holes: Sequence[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) outside of ``holes``, which are in order and do not overlap."""
    for hole_start, hole_end in holes:
        yield start, max(hole_start, start)
        start = max(hole_end, start)
    yield start, end


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
