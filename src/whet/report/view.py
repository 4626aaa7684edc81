"""The run that a report is about."""

from __future__ import annotations

from whet.core.run import Run

RunView = Run
load_run = Run
