"""``whet doctor``: this machine, the engine installed on it, and which levers run."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from whet.core.errors import UsageError
from whet.core.provenance import Device, find_device
from whet.engines import EngineProfile, get_profile
from whet.engines.compatibility import Installed, LeverStatus, Status, lever_statuses
from whet.engines.machine import Machine, cpu_features, find_machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """``problem`` says why the engine cannot run here, with the fix.

    ``levers`` is empty where no engine is installed.
    """

    device: Device
    machine: Machine
    cpu_features: tuple[str, ...]
    engine: str
    python: str
    installed: Installed | None
    problem: str | None
    levers: tuple[LeverStatus, ...]

    @property
    def by_status(self) -> dict[str, list[str]]:
        """The levers of each status, the working ones first."""
        return {
            status: [item.lever for item in self.levers if item.status == status]
            for status in get_args(Status)
        }

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "device": asdict(self.device),
            "machine": self.machine.word,
            "cpu_features": list(self.cpu_features),
            "python": self.python,
            "engine": None if self.installed is None else asdict(self.installed),
            "trouble": self.problem,
            "levers": [
                {
                    "lever": item.lever,
                    "status": item.status,
                    "why": None if item.row is None else item.row.says,
                    "basis": None if item.row is None else item.row.basis,
                }
                for item in self.levers
            ],
        }


def examine(engine: str, python: Path | None) -> Examination:
    """Examine this machine and the engine that ``python`` has.

    ``UsageError`` for an unknown engine, and where ``python`` is not a program.
    """
    profile = get_profile(engine)
    if python is not None and shutil.which(python) is None:
        raise UsageError(
            f"--python {python} is not a program", fix="name a Python, such as .venv/bin/python"
        )
    device = find_device()
    program = str(python or sys.executable)
    installed = None if profile.installation is None else profile.installation.find(program)
    kind = "cpu" if installed is not None and installed.cpu_build else device.kind
    machine = find_machine(kind)
    return Examination(
        device=device,
        machine=machine,
        cpu_features=cpu_features(),
        engine=profile.title,
        python=program,
        installed=installed,
        problem=_problem(profile, program, installed, gpu=device.kind == "cuda"),
        levers=() if installed is None else lever_statuses(engine, installed, machine),
    )


def _problem(
    profile: EngineProfile, python: str, installed: Installed | None, *, gpu: bool
) -> str | None:
    if profile.installation is None:
        return (
            f"whet doctor does not examine {profile.title}; use whet check with a spec of it, or "
            "attach a server with engine.url"
        )
    if installed is None:
        return profile.installation.missing(python)
    return profile.installation.problem(installed, gpu=gpu)
