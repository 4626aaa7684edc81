"""What a search needs of measuring; how it is done, the search does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.flow.run.plan import Plan, Round


class LoadMeasurer(Protocol):
    """A variant whose server starts when a load is not stored."""

    ready_s: list[float]
    """Seconds of each start."""

    def measure(self, load: Load, worth_repeating: Callable[[TrialRecord], bool]) -> None:
        """Measure one load and store its trial; an invalid one again if it is worth it.

        Raises ``EngineStartError`` and ``EngineLostError``.
        """
        ...


class Measurer(Protocol):
    """Measures and stores what is asked; what is stored already is not measured again."""

    def measure(
        self, plan: Plan, rounds: Sequence[Round], *, quality: bool, title: str = ""
    ) -> None:
        """Measure rounds of servers; ``quality`` checks the answers of each variant, too."""
        ...

    def open_on_demand(
        self, plan: Plan, resolved: ResolvedEngine, *, label: str
    ) -> AbstractContextManager[LoadMeasurer]:
        """Open a session whose loads are chosen one by one; ``label`` is shown at a start."""
        ...

    def compare_answers(self, plan: Plan, resolved: ResolvedEngine) -> None:
        """Compare a variant's answers with those of a server without speculation."""
        ...
