"""Progress for a person at a terminal, and plain lines for a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from whet.cli.heartbeat import Heartbeat
from whet.cli.terminal import TerminalConsole
from whet.core.load import Load
from whet.core.records.summary import CellSummary
from whet.core.redact import message_line, one_line
from whet.core.starved import HeldUp
from whet.core.units import human_duration

_LINE_EVERY_S = 15.0
_OTHER_LINES = 8
"""Lines of a terminal that are not rows of the table of cells."""


class ConsoleObserver:
    """Shows stages as lines, measured cells as a live table above a bar; use it as a context.

    Where the output is not a terminal, a cell is a line and the bar becomes one now and then.
    After 30 s without a line, or a moving bar, another thread says what is awaited and whether the
    server gets processor time. ``quiet`` leaves warnings alone.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or TerminalConsole()
        self._quiet = quiet
        self._began = time.monotonic()
        self._last_line = 0.0
        self._awaited = ""
        self._heartbeat = Heartbeat(self._still)
        self._task: tuple[str, TaskID] | None = None
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._cells: dict[tuple[str, Load], tuple[CellSummary, str]] = {}
        self._is_live = self.console.is_terminal and not quiet
        self._live = Live(get_renderable=self._picture, console=self.console)

    def __enter__(self) -> ConsoleObserver:
        if self._is_live:
            self._live.start()
        self._heartbeat.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._heartbeat.stop()
        if self._is_live:
            self._end_task()
            self._live.transient = kind is None  # else nothing but the table says what was measured
            self._live.stop()

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins: one line with the time since the start."""
        self._end_task()
        self._awaited = f"{name}: {detail}" if detail else name
        self._print(Text(one_line(name), "bold"), detail)

    def note(self, message: str) -> None:
        """Something worth a line."""
        self._print(Text(" "), message)

    def warn(self, message: str) -> None:
        """Something that a person should know before trusting the result."""
        self._print(Text("  warning:", "yellow"), message, always=True)

    def cell(self, cell: CellSummary, standing: str) -> None:
        """Add a cell to the table, or replace its older figures there; else print a line."""
        self._cells[cell.variant, cell.load] = cell, standing
        if not self._is_live:
            from whet.report.run.live import cell_line

            self._print(Text(" "), cell_line(cell, standing))

    def progress(self, label: str, done: int, total: int) -> None:
        """Work inside the stage advances."""
        if self._task is None or self._task[0] != label:
            self._end_task()
            self._task = (label, self._bar.add_task(label, total=total, completed=done))
        self._bar.update(self._task[1], completed=done, total=total)
        awaited, self._awaited = self._awaited, f"{label} {done}/{total}" if total > 1 else label
        if not self._is_live:
            self._line_now_and_then(done, total)
        elif awaited != self._awaited:
            self._heartbeat.sign()

    def _line_now_and_then(self, done: int, total: int) -> None:
        if time.monotonic() - self._last_line >= _LINE_EVERY_S and done < total:
            self._last_line = time.monotonic()
            left_s = next((task.time_remaining for task in self._bar.tasks), None)
            left = "" if left_s is None else f", {human_duration(left_s)} left"
            self._print(Text(" "), f"{self._awaited}{left}")

    def _still(self, silent_s: float, held: HeldUp | None) -> None:
        """Explain a silence; a bar with a clock does too, unless others hold the server up."""
        is_warning = held is not None and held.by_others
        if self._is_live and self._task is not None and not is_warning:
            return
        text = f"{self._awaited}: still waiting, {human_duration(silent_s)} so far"
        head = Text("  warning:", "yellow") if is_warning else Text(" ")
        self._print(head, f"{text}; {held.reason}" if held else text, always=is_warning)

    def _picture(self) -> RenderableType:
        """The table of cells above the bar."""
        cells = list(self._cells.values())
        if not cells:
            return self._bar
        from whet.report.run.live import live_table
        from whet.report.writers.console import console_table

        most = live_table(cells, max(1, self.console.height - _OTHER_LINES))
        return Group(console_table(most, self.console.width), self._bar)

    def _end_task(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task[1])
            self._task = None

    def _print(self, head: Text, text: str, *, always: bool = False) -> None:
        self._heartbeat.sign()
        if self._quiet and not always:
            return
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        time_shown = Text(f"{minutes:02d}:{seconds:02d}", "dim")
        line = time_shown, head, Text(message_line(text))
        self.console.print(*line, soft_wrap=not self.console.is_terminal)
