"""Options of ``whet run`` and ``whet check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from whet.core.errors import UsageError
from whet.core.quote import shell_words
from whet.core.redact import message_line, redact
from whet.core.run import RESUME_NOTE
from whet.core.spec import Spec, load_spec

if TYPE_CHECKING:
    from whet.flow.run.measure.rounds import Executor

OutputDir = Annotated[Path, Parameter(name=["--output-dir", "-o"])]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class SpecOptions:
    """Changes to the spec for this command alone."""

    set: Annotated[tuple[str, ...], Parameter(name="--set")] = ()
    """Replace a key of the spec: KEY.PATH=VALUE, such as load.concurrency=[1,8]. Repeatable."""

    def read(self, spec_file: Path) -> Spec:
        """The spec in ``spec_file`` with these changes. ``UsageError`` where it is not valid."""
        return load_spec(spec_file, self.set)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Where a run is stored and how it proceeds."""

    output_dir: OutputDir = Path("runs")
    """Directory for run output."""
    name: str | None = None
    """Name of the run. Default: the spec's own."""
    resume: bool = False
    """Continue an interrupted run."""
    skip_infeasible: bool = False
    """Run the other variants when some cannot run here."""
    executor: Literal["local", "ray"] = "local"
    """Where servers run: on this machine one after the other, or on every device of a Ray cluster
    (pip install ray)."""
    address: str | None = None
    """HOST:PORT of the Ray cluster's head. Default: the cluster that this machine is a node of."""

    @contextmanager
    def open_executor(self) -> Iterator[Executor]:
        """The executor of these options; ended, with its engines, at the end.

        ``UsageError`` for options that do not go together, or where no cluster answers.
        """
        if self.executor == "local":
            from whet.flow.run.measure.rounds import Executor

            if self.address is not None:
                raise UsageError("--address is that of a Ray cluster", fix="add --executor ray")
            yield Executor()
            return
        from whet.flow.run.workers.executor import ray_executor

        with ray_executor(self.address) as executor:
            yield executor


def resume_note(words: Iterable[str], *options: Any) -> bytes:
    """Return the last line of a run's spec.yaml: the command ``words`` that goes on with it."""
    line = list(words)
    for group in options:
        for each in fields(group):
            value = getattr(group, each.name)
            if value != each.default and each.name != "resume":
                flag = f"--{each.name.replace('_', '-')}"
                values = value if isinstance(value, tuple) else (value,)
                line += [flag if item is True else f"{flag}={item}" for item in values]
    text = redact(message_line(f"{RESUME_NOTE}{shell_words([*line, '--resume'])}"))
    return text.encode(errors="replace") + b"\n"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOptions:
    """The machine to check for."""

    output_dir: OutputDir = Path("runs")
    """Directory for run output."""
    device: str | None = None
    """Check for another GPU, such as L4 or "2x H100 SXM". Default: this machine."""
    vllm: str | None = None
    """vLLM version to assume with --device. Default: the installed one, else the newest known."""
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"])] = False
    """Print the command of each variant."""
