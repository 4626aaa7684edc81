"""Text out of prompts made fit to be shown: what cannot be seen is drawn, secrets are not."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from whet.core.records import Excerpt
from whet.core.redact import redact

REDACTED: Final = "(redacted)"
NOTHING: Final = "(nothing)"
_SIGNS: Final = {"\n": "⏎", "\t": "→", "\r": "␍", "\x7f": "␡", "\u00a0": "⍽"}
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_JOINERS: Final = "\u200c\u200d"
"""They join letters and emoji; only where texts differ by them are they worth a sign."""
_AT_LINE_END: Final = re.compile(r" +(?=[\r\n])")
_AT_END: Final = re.compile(r" +\Z")
_AT_START: Final = re.compile(r"\A +")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownExcerpt:
    """An excerpt in one line, ready to print: ``title`` says which requests part, and where.

    ``before`` and ``after`` have their ``…`` where text goes on. Under ``redacted`` all is empty.
    """

    title: str
    before: str = ""
    here: str = ""
    there: str = ""
    after: str = ""
    redacted: bool = False

    @property
    def line(self) -> str:
        """``…before[here | there]after…``."""
        if self.redacted:
            return REDACTED
        return f"{self.before}[{self.here} | {self.there}]{self.after}"


def shown_excerpt(excerpt: Excerpt, kind: str, *, room: int = 40) -> ShownExcerpt:
    """``excerpt`` with at most ``room`` characters a part; blanks get a sign where they differ."""
    title = (
        f"{excerpt.place} and {excerpt.other_place} differ after {excerpt.token:,} "
        f"token{'' if excerpt.token == 1 else 's'}"
    )
    parts = (excerpt.before, excerpt.here, excerpt.there, excerpt.after)
    if all(part is None for part in parts):
        return ShownExcerpt(title=title, redacted=True)
    before, here, there, after = hide_secrets(*(part or "" for part in parts))
    before, after = before[-room:], after[:room]
    blanks = kind == "whitespace"
    if blanks:
        before, after = _AT_END.sub(_dots, before), _AT_START.sub(_dots, after)
    return ShownExcerpt(
        title=title,
        before=f"…{visible(before)}" if before else "",
        here=_differing(here, room, blanks),
        there=_differing(there, room, blanks),
        after=f"{visible(after)}…" if after else "",
    )


def visible(text: str, *, blanks: bool = False) -> str:
    """``text`` with signs for white space and control characters; it obeys no terminal after.

    A blank is ``·`` at a line's end, everywhere under ``blanks``; a line end ``⏎``, a tab ``→``,
    a no-break space ``⍽``, a control character its picture, another one its code point.
    """
    text = text.replace(" ", "·") if blanks else _AT_LINE_END.sub(_dots, text)
    return "".join(_sign(letter, blanks) for letter in text)


def hide_secrets(before: str, here: str, there: str, after: str) -> tuple[str, str, str, str]:
    """The parts of an excerpt without secrets, also one that runs over an edge between parts.

    Two keys often share their first letters: each part alone would not look like a key.
    """
    shorter, after = _hidden(before, here, after)
    other, _ = _hidden(before, there, "")
    kept = min(shorter, other)
    first, second = redact(before + here + after), redact(before + there)
    return first[:kept], first[kept : len(first) - len(after)], second[kept:], after


def _hidden(before: str, middle: str, after: str) -> tuple[int, str]:
    """How much of ``before``, and which end of ``after``, no secret touches."""
    whole = before + middle + after
    safe = redact(whole)
    if safe == whole:
        return len(before), after
    most = min(len(whole), len(safe))
    head = next((at for at in range(most) if whole[at] != safe[at]), most)
    tail = next((at for at in range(most - head) if whole[-1 - at] != safe[-1 - at]), most - head)
    return min(head, len(before)), after[len(after) - min(tail, len(after)) :]


def _differing(text: str, room: int, blanks: bool) -> str:
    if not text:
        return NOTHING
    cut = "…" if len(text) > room else ""
    return visible(text[:room], blanks=blanks or not text.strip()) + cut


def _sign(letter: str, blanks: bool) -> str:
    code = ord(letter)
    if letter == " " or 0x20 < code < 0x7F:
        return letter
    if letter in _SIGNS:
        return _SIGNS[letter]
    if code < 0x20:
        return chr(0x2400 + code)
    if letter in _JOINERS and not blanks:
        return letter
    unseen = unicodedata.category(letter) in _UNSEEN or code & 0xFFFE == 0xFFFE
    return f"⟨U+{code:04X}⟩" if unseen else letter


def _dots(found: re.Match[str]) -> str:
    return "·" * len(found[0])
