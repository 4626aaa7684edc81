"""Output of every command, without control and bidi characters of foreign text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from whet.core.redact import printable


class TerminalConsole(Console):
    """A console whose texts are data: no mark-up, and styles are the only escape codes."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False, width: int | None = None):
        stream = sys.stderr if stderr else sys.stdout
        while hasattr(stream, "rich_proxied_file"):
            stream = stream.rich_proxied_file
        super().__init__(
            file=stream,
            quiet=quiet,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            force_jupyter=False,
            # The kernel of a notebook sets FORCE_COLOR, and shows plain lines.
            force_terminal=False if "ipykernel" in sys.modules else None,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render with every text cleaned."""
        for segment in super().render(renderable, options):
            own = segment.control or (segment.text.isascii() and segment.text.isprintable())
            yield segment if own else Segment(printable(segment.text), segment.style)


class _CleanStream:
    """A text stream that cleans what is written to it; consoles clean their own texts."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write ``text`` without control characters."""
        return self.rich_proxied_file.write(printable(text))

    def __getattr__(self, name: str) -> object:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def clean_output() -> Iterator[None]:
    """Clean everything that this process prints."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_CleanStream, streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
