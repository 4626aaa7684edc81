"""Write the deployment files of one variant into a run's ``deploy/`` or ``reproduce/``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from whet.core.records.engine import ResolvedEngine
from whet.core.redact import clean, one_line
from whet.core.store import write_atomic
from whet.deploy.render import SCRIPT, Site, render, render_script
from whet.engines import get_profile

_EXECUTABLE: Final = 0o755


def write_deployment(
    folder: Path,
    resolved: ResolvedEngine,
    *,
    image_tag: str | None = None,
    note: str = "",
    limits: Sequence[str] = (),
    shared: bool | None = False,
) -> None:
    """Write ``compose.yaml`` (a container) and ``serve.sh`` (the machine that measured).

    ``image_tag`` pins the image; by default it is the version that was measured. ``shared`` is that
    of ``DeploymentPlanner``. ``note`` and the decision's ``limits`` are comments at the head of
    each file. An attached server and an engine without a plan get these and the command alone.
    Raises ``StorageError`` where the folder cannot be written.
    """
    planner = get_profile(resolved.engine).plan_deployment
    if resolved.url is not None or planner is None:
        lines = (*_comments(limits, note), clean(resolved.serve_line), "")
        write_atomic(folder / "README.txt", "\n".join(lines))
        return
    plan = planner(resolved, image_tag=image_tag, shared=shared)
    files = {**render("compose", plan, Site()), SCRIPT: render_script(plan)}
    for name, text in files.items():
        write_file(folder / name, commented(text, limits, note))


def commented(text: str, limits: Sequence[str], note: str = "") -> str:
    """Return a script or a YAML file that begins with ``note`` and ``limits`` as comments."""
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    lines = (f"# {line}" for line in _comments(limits, note))
    return "\n".join(filter(None, (first, *lines, rest)))


def _comments(limits: Sequence[str], note: str) -> Iterator[str]:
    """Yield lines without line breaks or control characters."""
    yield from ([one_line(note)] if note else [])
    yield from (f"Limit: {one_line(limit)}" for limit in limits)


def write_file(path: Path, text: str) -> None:
    """Write one file of a deployment; a script is executable."""
    write_atomic(path, text)
    if path.suffix == ".sh":
        path.chmod(_EXECUTABLE)
