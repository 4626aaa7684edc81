"""The error tree: each branch has one exit code; an error prints its cause and its fix.

    WhetError                 1   any error without a branch of its own
    ├── UsageError            2   a flag, the spec file or a data file cannot be used
    ├── CheckpointError       3   a checkpoint that is missing, truncated, unsafe or foreign
    ├── InfeasibleError       4   preflight: it cannot run here (memory, tokenizer, version)
    ├── EngineError           5   the engine died, hung or refused
    │   ├── EngineStartError      … before it was ready
    │   └── EngineLostError       … after it was ready
    ├── MeasurementError      6   the client missed its timing bounds
    ├── QuantizationError     7   the quantizer refused or its result failed verification
    ├── StorageError          8   the disk is full, or the run directory is locked or unreadable
    ├── NothingQualifiesError 9   the run is complete, no variant qualifies
    └── Interrupted         130   Ctrl-C, SIGTERM, SIGHUP, SIGQUIT; results so far stay stored

An error has a cause and a fix, printed as two lines. Adapters translate foreign errors into this
tree and chain them with ``raise … from error``.
"""

from __future__ import annotations

from whet.core.redact import message_line


class WhetError(Exception):
    """Anything that whet raises on purpose.

    Each argument is a line of the cause. ``fix`` says what to do, None where the cause says it.
    """

    exit_code = 1

    def __init__(self, *lines: object, fix: str | None = None) -> None:
        """Keep the lines of the cause and the fix."""
        super().__init__(*lines)
        self.fix = fix

    def __str__(self) -> str:
        """Return cause and fix as one text, for reasons that are stored or warned of."""
        cause = "\n".join(map(str, self.args))
        return cause if self.fix is None else f"{cause}; {self.fix}"

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {message_line(str(self))}"]


class UsageError(WhetError):
    """A flag, the spec file or a data file cannot be used."""

    exit_code = 2


class CheckpointError(WhetError):
    """A checkpoint is missing, truncated, unsafe or of an unknown form."""

    exit_code = 3


class InfeasibleError(WhetError):
    """Preflight found that a variant cannot run on this machine or engine version."""

    exit_code = 4


class EngineError(WhetError):
    """The inference engine failed."""

    exit_code = 5


class EngineStartError(EngineError):
    """The engine ended, hung or ran out of memory before it answered its first request."""


class EngineLostError(EngineError):
    """The engine was ready and then stopped answering."""


class MeasurementError(WhetError):
    """The measuring client could not do its work within its stated bounds."""

    exit_code = 6


class QuantizationError(WhetError):
    """The quantizer refused its input, or what it wrote failed verification."""

    exit_code = 7


class StorageError(WhetError):
    """The disk is full, or the run directory is locked, foreign or unreadable."""

    exit_code = 8


class NothingQualifiesError(WhetError):
    """The run is complete and no variant qualifies for a recommendation."""

    exit_code = 9


class Interrupted(WhetError):
    """A person or the system asked to stop."""

    exit_code = 130
