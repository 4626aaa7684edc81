"""What an answer that is not a success becomes."""

from __future__ import annotations

from whet.core.errors import MeasurementError


class HttpError(MeasurementError):
    """The server answered with an HTTP error; ``status`` is its code."""

    def __init__(self, message: str, *, status: int) -> None:
        """Keep the code beside the sentence."""
        super().__init__(message)
        self.status = status
