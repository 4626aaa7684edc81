"""A trial that ended early still says what it had measured."""

from __future__ import annotations

from whet.core.errors import EngineLostError, Interrupted
from whet.core.records.load import TrialRecord


class TrialLost(EngineLostError):
    """The engine died or stopped answering; ``record`` (status failed) holds what came before."""

    def __init__(self, message: str, *, record: TrialRecord) -> None:
        """Keep the record beside the sentence."""
        super().__init__(message)
        self.record = record


class TrialInterrupted(Interrupted):
    """A person or the system asked to stop; ``record`` (status interrupted) holds the rest."""

    def __init__(self, message: str, *, record: TrialRecord) -> None:
        """Keep the record beside the sentence."""
        super().__init__(message)
        self.record = record
