"""Another machine that a spec is checked for: its GPUs and the engine's version there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from whet.core.provenance import Device
from whet.core.records.engine import ResolvedEngine
from whet.engines.compatibility import compatibility_rows, lookup, version_of
from whet.engines.machine import Machine


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMachine:
    """GPUs, their compute capability and the engine's version that will be installed there."""

    device: Device
    capability: tuple[int, int]
    version: str

    @property
    def machine(self) -> Machine:
        """Its kind in the compatibility table."""
        return Machine(kind=self.device.kind, capability=self.capability)

    def needs(self, resolved: Iterable[ResolvedEngine]) -> tuple[str, ...]:
        """The packages beside the engine that these variants need there."""
        rows = (row for item in resolved for row in lookup(item, self.machine))
        return tuple(sorted({row.package for row in rows if row.package is not None}))


def newest_known(engine: str) -> str:
    """The newest version at which a row of the compatibility table starts."""
    return max((row.since for row in compatibility_rows(engine) if row.since), key=version_of)
