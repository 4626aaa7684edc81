"""What the tests of the command line share."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.flow.stage import SHORT, tiny_spec
from whet.core.errors import Interrupted


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    def sentence(self, code: int) -> str:
        """The cause of an error that ends with ``code``, and its fix where it has one."""
        assert self.code == code, self.err
        assert "Traceback" not in self.out + self.err
        first, *rest = self.err.splitlines()
        assert first.startswith("error: "), self.err
        assert [line[:5] for line in rest] in ([], ["fix: "]), self.err
        return "; ".join([first.removeprefix("error: "), *(line[5:] for line in rest)])

    def stop(self) -> str:
        """The one line of a command that was stopped."""
        assert self.code == Interrupted.exit_code, self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")


Whet = Callable[..., Said]
Stub = Callable[..., subprocess.Popen[str]]


def write_spec(folder: Path, **change: Any) -> Path:
    """A spec of a target and a draft in ``folder``, for preflight alone."""
    data = {
        "name": "run",
        "model": {"target": "./target", "draft": "./draft"},
        "hardware": {"price_usd_per_hour": 1.0},
        "engine": {"args": {"max_model_len": 512}},
        "workload": {**SHORT, "max_output_tokens": 16, "max_input_tokens": 400},
        "load": {"concurrency": [1]},
    }
    path = folder / "whet.yaml"
    path.write_text(yaml.safe_dump(data | change), encoding="utf-8")
    return path


def write_whole_spec(folder: Path, **change: Any) -> Path:
    """The spec of a run that the scripted engine ends in a second or two."""
    path = folder / "whet.yaml"
    spec = tiny_spec(folder, **change)
    path.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
    return path


def finished(process: subprocess.Popen[str]) -> Said:
    """What a process said by its end."""
    out, err = process.communicate(timeout=60)
    return Said(code=process.returncode, out=out, err=err)


def stopped(process: subprocess.Popen[str], number: signal.Signals, *, at: str) -> Said:
    """What a process said that got a signal when it printed the line ``at``."""
    assert process.stdout is not None
    assert any(line.strip() == at for line in process.stdout), "it ended before"
    process.send_signal(number)
    return finished(process)
