"""A checkpoint in the hub's cache: the hub id and the commit are parts of its path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """One commit of a hub repository; ``hub_id`` is ``owner/name``."""

    hub_id: str
    commit: str


def snapshot_of(path: str | Path) -> Snapshot | None:
    """The snapshot whose folder in the hub's cache is ``path``; None for any other folder.

    The layout is huggingface_hub's: ``models--owner--name/snapshots/COMMIT``.
    """
    parts = Path(path).parts
    for repository, folder, commit in zip(parts, parts[1:], parts[2:], strict=False):
        if repository.startswith("models--") and folder == "snapshots":
            hub_id = repository.removeprefix("models--").replace("--", "/")
            return Snapshot(hub_id=hub_id, commit=commit)
    return None


def snapshot_path(cache: Path, snapshot: Snapshot) -> Path:
    """The folder of ``snapshot`` below ``cache``, the inverse of ``snapshot_of``."""
    repository = f"models--{snapshot.hub_id.replace('/', '--')}"
    return cache / repository / "snapshots" / snapshot.commit
