"""Write the deployment files of one variant into a run's ``deploy/`` or ``reproduce/``."""

from __future__ import annotations

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
    shared: bool | None = False,
) -> None:
    """Write ``compose.yaml`` (a container) and ``serve.sh`` (the machine that measured).

    ``image_tag`` pins the image; by default it is the version that was measured. ``shared`` is that
    of ``DeploymentPlanner``. ``note`` is a
    comment at the head of each file. An attached server and an engine without a plan get only a
    note. Raises ``StorageError`` where the folder cannot be written.
    """
    planner = get_profile(resolved.engine).plan_deployment
    if resolved.url is not None or planner is None:
        write_atomic(
            folder / "README.txt",
            f"{one_line(note)}\n{clean(resolved.serve_line)}\n".lstrip().encode(),
        )
        return
    plan = planner(resolved, image_tag=image_tag, shared=shared)
    files = {**render("compose", plan, Site()), SCRIPT: render_script(plan)}
    for name, text in files.items():
        first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
        lines = filter(None, (first, f"# {one_line(note)}" if note else "", rest))
        write_file(folder / name, "\n".join(lines))


def write_file(path: Path, text: str) -> None:
    """Write one file of a deployment; a script is executable."""
    write_atomic(path, text.encode())
    if path.suffix == ".sh":
        path.chmod(_EXECUTABLE)
