"""Write the deployment files that an engine's profile renders for one variant."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.core.records.engine import ResolvedEngine
from whet.core.store import write_atomic
from whet.engines import get_profile

_EXECUTABLE: Final = 0o755


def write_deployment(
    folder: Path, resolved: ResolvedEngine, *, image_tag: str | None = None
) -> None:
    """Write ``compose.yaml`` (a container) and ``serve.sh`` (the command that measured).

    ``image_tag`` pins the image; by default it is the version that was measured. An attached server
    and an engine without templates get only a note. Raises ``StorageError`` where the folder cannot
    be written.
    """
    render = get_profile(resolved.engine).deployment_files
    if resolved.url is not None or render is None:
        write_atomic(folder / "README.txt", f"{resolved.serve_line}\n".encode())
        return
    for name, text in render(resolved, image_tag).items():
        write_atomic(folder / name, text.encode())
        if name.endswith(".sh"):
            (folder / name).chmod(_EXECUTABLE)
