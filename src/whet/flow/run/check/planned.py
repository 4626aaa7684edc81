"""``whet check --device``: the machine to check for, and what is assumed of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from whet.core.records.engine import ResolvedEngine
from whet.core.spec import EngineSpec
from whet.engines import get_profile
from whet.engines.compatibility import PlannedMachine, newest_known
from whet.predict.hardware import planned_device


def plan_machine(name: str, version: str | None, engine: EngineSpec) -> PlannedMachine:
    """The GPU with this name; default version: the installed one, else the newest known."""
    device, capability = planned_device(name)
    if version is None:
        own = get_profile(engine.name).installation
        installed = None if own is None else own.find(str(engine.python or sys.executable))
        if installed is None:
            version = newest_known(engine.name)
        else:
            version = installed.version.partition("+")[0]
    return PlannedMachine(device=device, capability=capability, version=version)


def machine_text(planned: PlannedMachine, variants: Sequence[ResolvedEngine], engine: str) -> str:
    """The planned machine and what these variants need to be installed there."""
    count = f"{planned.device.count} × " if planned.device.count > 1 else ""
    version = f"{get_profile(engine).title} {planned.version} for CUDA"
    assumed = ", ".join([version, *planned.needs(variants)])
    return f"{count}{planned.device.name}, which is not here (taken for granted: {assumed})"
