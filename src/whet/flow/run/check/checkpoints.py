"""The checkpoints that a spec names: local folders, and hub ids with or without their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from whet.checkpoint.hub import (
    HubCheckpoint,
    fetch,
    fetch_weights,
    has_weights,
    local_folder,
    read_repository,
    write_hollow,
)
from whet.core.errors import WhetError
from whet.core.hub import snapshot_of, snapshot_path
from whet.core.protocols import Observer
from whet.core.records.engine import ResolvedEngine
from whet.core.records.model import ModelFacts
from whet.core.store import RunStore
from whet.core.units import MIB, human_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSource:
    """A hub checkpoint that a spec names, and how much of it is still to be downloaded."""

    hub_id: str
    commit: str
    weight_bytes: int
    missing_bytes: int

    @property
    def text(self) -> str:
        """The pinned checkpoint and what is left to download, in one line."""
        left = f"{human_bytes(self.missing_bytes)} to download"
        state = left if self.missing_bytes else "in the cache"
        return f"{self.hub_id} at {self.commit}: {human_bytes(self.weight_bytes)}, {state}"


class Checkpoints:
    """Finds the folder of each checkpoint, once.

    ``scratch`` is a temporary folder. Of a hub checkpoint whose weights are not in the cache only
    the headers are fetched, until ``download`` is called.
    """

    def __init__(self, scratch: Path, commits: Mapping[str, str]) -> None:
        """``scratch`` holds headers without weights; ``commits`` pins hub ids."""
        self.scratch = scratch
        self._commits = dict(commits)
        self._folders: dict[tuple[str, str | None], Path] = {}
        self.missing: dict[Path, HubCheckpoint] = {}

    def find(self, ref: str, revision: str | None = None) -> Path:
        """The folder of a path or a hub id. ``CheckpointError`` where it cannot be read."""
        key = ref, revision
        if key not in self._folders:
            self._folders[key] = local_folder(ref) or self._on_hub(ref, revision)
        return self._folders[key]

    def _on_hub(self, ref: str, revision: str | None) -> Path:
        folder = fetch(ref, self._commits.get(ref, revision), weights=False)
        if has_weights(folder):
            return folder
        checkpoint = read_repository(ref, folder)
        hollow = snapshot_path(self.scratch, checkpoint.snapshot)
        if not hollow.exists():
            write_hollow(checkpoint, hollow)
            self.missing[hollow] = checkpoint
        return hollow

    def leave_out(self, folders: Iterable[Path]) -> None:
        """Do not download the weights of these folders."""
        for folder in folders:
            del self.missing[folder]

    def sources(self, *models: ModelFacts | None) -> tuple[HubSource, ...]:
        """Those of ``models`` that are on the hub, then adapters and drafts that are not here."""
        weights = {
            snapshot: facts.weight_bytes
            for facts in models
            if facts is not None and (snapshot := snapshot_of(facts.path)) is not None
        }
        missing = {each.snapshot: each for each in self.missing.values()}
        weights |= {key: sum(each.weights.values()) for key, each in missing.items()}
        return tuple(
            HubSource(
                hub_id=key.hub_id,
                commit=key.commit,
                weight_bytes=size,
                missing_bytes=missing[key].missing_bytes if key in missing else 0,
            )
            for key, size in weights.items()
        )

    def download_bytes(self) -> dict[Path, int]:
        """Bytes to download, by the repository's folder in the hub's cache."""
        return {each.folder.parents[1]: each.missing_bytes for each in self.missing.values()}

    def download(self, observer: Observer) -> None:
        """Fetch the weights that are missing, of the commits whose headers were read."""
        for checkpoint in self.missing.values():
            snapshot, size = checkpoint.snapshot, checkpoint.missing_bytes
            observer.stage(
                "download", f"{snapshot.hub_id} at {snapshot.commit}: {human_bytes(size)}"
            )
            fetch_weights(
                checkpoint,
                lambda done, total: observer.progress("MiB", done // MIB, total // MIB),
            )
            self._commits[snapshot.hub_id] = snapshot.commit
        self._folders.clear()
        self.missing.clear()

    @contextmanager
    def readable_errors(self, key: str = "") -> Iterator[None]:
        """Let errors name hub ids in place of folders that only hold headers, behind ``key``."""
        try:
            yield
        except WhetError as error:
            cause = self.readable("\n".join(map(str, error.args)))
            fix = error.fix and self.readable(error.fix)
            raise type(error)(f"{key}{cause}", fix=fix) from error

    def readable(self, text: str) -> str:
        """Return a message with hub ids in place of folders that only hold headers."""
        for hollow, checkpoint in self.missing.items():
            text = text.replace(str(hollow), checkpoint.snapshot.hub_id)
        return text


@contextmanager
def open_checkpoints(commits: Mapping[str, str] | None = None) -> Iterator[Checkpoints]:
    """Checkpoints whose headers are kept in a temporary folder."""
    with TemporaryDirectory(prefix="whet-") as scratch:
        yield Checkpoints(Path(scratch), commits or {})


def stored_commits(store: RunStore) -> dict[str, str]:
    """The commits of the hub checkpoints that a run has measured, by hub id."""
    paths = [facts.path for facts in store.all("models", ModelFacts)]
    for resolved in store.all("variants", ResolvedEngine):
        variant = resolved.variant
        paths.append(variant.model_path)
        if variant.speculation is not None and variant.speculation.draft_path is not None:
            paths.append(variant.speculation.draft_path)
        paths += [path for _, path in variant.loras]
    snapshots = (snapshot_of(path) for path in paths)
    return {each.hub_id: each.commit for each in snapshots if each is not None}
