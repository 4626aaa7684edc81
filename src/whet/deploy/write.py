"""Write the deployment files that an engine's profile renders for one variant."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.core.records.engine import ResolvedEngine
from whet.core.store import write_atomic
from whet.engines import get_profile

_EXECUTABLE: Final = 0o755


def write_deployment(
    folder: Path, resolved: ResolvedEngine, *, image_tag: str | None = None, note: str = ""
) -> None:
    """Write ``compose.yaml`` (a container) and ``serve.sh`` (the command that measured).

    ``image_tag`` pins the image; by default it is the version that was measured. ``note`` is a
    comment at the head of each file. An attached server
    and an engine without templates get only a note. Raises ``StorageError`` where the folder cannot
    be written.
    """
    render = get_profile(resolved.engine).deployment_files
    if resolved.url is not None or render is None:
        write_atomic(folder / "README.txt", f"{note}\n{resolved.serve_line}\n".lstrip().encode())
        return
    for name, text in render(resolved, image_tag).items():
        first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
        lines = filter(None, (first, f"# {note}" if note else "", rest))
        write_atomic(folder / name, "\n".join(lines).encode())
        if name.endswith(".sh"):
            (folder / name).chmod(_EXECUTABLE)
