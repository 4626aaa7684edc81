"""Quote foreign text so that YAML and a shell hold it as data only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Annotated, Final

import yaml
from pydantic import AfterValidator

from whet.core.errors import UsageError
from whet.core.redact import UNPRINTABLE, is_env_name

_PLAIN: Final = re.compile(r"([A-Za-z/]|\.\.?/)[\w./+@-]+", re.ASCII)
_NOT_IN_A_WORD: Final = re.compile(rf"[\r\n\t]|{UNPRINTABLE.pattern}")


def _require_env_name(name: str) -> str:
    if not is_env_name(name):
        raise ValueError(
            f"{name!r} is not a name of an environment variable; use letters, digits and '_', "
            "at most 255, and no digit first"
        )
    return name


EnvName = Annotated[str, AfterValidator(_require_env_name)]


class _Dumper(yaml.SafeDumper):
    """Writes the bytes of an undecodable path as question marks: YAML has no form for them."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Represent a text."""
        return super().represent_str(data.encode(errors="replace").decode())


_Dumper.add_representer(str, _Dumper.represent_str)


def yaml_text(data: object, *, style: str | None = None, flow: bool | None = False) -> str:
    """``data`` as a YAML document; text of other scripts stays readable, the rest is escaped.

    ``flow`` None writes the innermost collections on one line.
    """

    def dumped(readable: bool) -> str:
        return yaml.dump(
            data,
            Dumper=_Dumper,
            sort_keys=False,
            width=float("inf"),
            allow_unicode=readable,
            default_style=style,
            default_flow_style=flow,
        )

    text = dumped(readable=True)
    return dumped(readable=False) if UNPRINTABLE.search(text) else text


def yaml_scalar(text: str) -> str:
    """``text`` as a YAML scalar on one line, in double quotes unless it is a plain word."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return yaml_text(text, style='"').removesuffix("\n")


def shell_word(word: str) -> str:
    """``word`` quoted for a POSIX shell on one line: control characters are written as escapes.

    Raises ``UsageError`` for a NUL character, which no command can hold.
    """
    if "\0" in word:
        raise UsageError(
            f"{word!r} has a NUL character, which no command can hold", fix="remove it"
        )
    if _NOT_IN_A_WORD.search(word) is None:
        return shlex.quote(word)
    text = word.rstrip("\n")  # $(…) drops line ends at the end; the last character of IFS is one
    plain = text.replace("\\", "\\\\").replace("'", "\\0047")
    line_ends = "${IFS#??}" * (len(word) - len(text))
    return f"\"$(printf %b '{_NOT_IN_A_WORD.sub(_escaped, plain)}'){line_ends}\""


def shell_words(words: Iterable[str]) -> str:
    """A command line for a POSIX shell."""
    return " ".join(map(shell_word, words))


def _escaped(match: re.Match[str]) -> str:
    """One character as its UTF-8 bytes, or a byte of an undecodable path as it was."""
    return "".join(f"\\0{byte:03o}" for byte in match[0].encode(errors="surrogateescape"))
