"""A model in a local folder or on the hub: its commit, small files, weights and their sizes.

huggingface_hub keeps the cache, resumes, and reads the token and the endpoint. A hollow checkpoint
has safetensors headers only: each weight file is as long as the real one and sparse, so everything
that reads shapes and sizes works as on the whole folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from threading import Event
from typing import Any, Final

from whet.checkpoint.files import read_json, refuse_gguf, require_regular
from whet.checkpoint.headers import INDEX
from whet.core.errors import CheckpointError, Interrupted
from whet.core.hub import Snapshot, snapshot_of
from whet.core.outside import json_value
from whet.core.protocols import Progress
from whet.core.redact import redact
from whet.core.store import NO_SPACE, translate_disk_errors
from whet.core.units import MIB

# An allow-list: pickles (*.bin, *.pt) and code (*.py) are never fetched.
_SMALL: Final = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_WEIGHTS: Final = "*.safetensors"
_UNWANTED: Final = ("consolidated*", "original/*", "onnx/*", "*/*")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TIMEOUT_S: Final = 10.0
_REPORT_EVERY_S: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class HubCheckpoint:
    """One commit of a hub repository. ``folder`` is in the hub's cache and has the small files.

    ``weights`` are bytes by file name, ``missing`` those of them that are not in ``folder`` yet.
    ``others`` are the files that are never fetched.
    """

    snapshot: Snapshot
    folder: Path
    weights: Mapping[str, int]
    missing: Mapping[str, int]
    others: tuple[str, ...]

    @property
    def missing_bytes(self) -> int:
        """Bytes still to be downloaded."""
        return sum(self.missing.values())


def locate(ref: str) -> Path:
    """Return the folder of ``ref``: a local one, or a hub id's from cache or hub.

    Raises ``CheckpointError`` where there is no such folder or repository, or no way to reach it.
    """
    return local_folder(ref) or fetch(ref, None)


def locate_without_weights(ref: str) -> Path:
    """As ``locate``, for the configuration and the tokenizer: no weights are downloaded."""
    return local_folder(ref) or fetch(ref, None, weights=False)


def local_folder(ref: str) -> Path | None:
    """The folder that ``ref`` names on this machine; None where it is a hub id.

    ``CheckpointError`` where it is neither.
    """
    local = Path(ref).expanduser()
    if local.is_dir():
        require_regular(local)
        return local.resolve()
    if local.exists() or not ref.startswith((".", "/", "~")):
        refuse_gguf(ref)
    if local.exists():
        raise CheckpointError(f"{ref} is a file", fix="give the checkpoint's folder")
    if ref.startswith((".", "/", "~")) or _HUB_ID.fullmatch(ref) is None:
        raise CheckpointError(
            f"no checkpoint folder at {ref}", fix="correct the path, or give a hub id (owner/name)"
        )
    return None


def fetch(ref: str, revision: str | None, *, weights: bool = True, bars: Any = None) -> Path:
    """Return the folder of a hub id, from the cache or downloaded; without ``weights`` small files.

    ``bars`` replaces the library's class of progress bars.
    """
    from huggingface_hub import snapshot_download

    with hub_errors(ref, revision):
        folder = snapshot_download(
            ref,
            revision=revision,
            allow_patterns=[_WEIGHTS, *_SMALL] if weights else list(_SMALL),
            ignore_patterns=list(_UNWANTED),
            tqdm_class=bars,
        )
    return Path(folder)


def fetch_weights(checkpoint: HubCheckpoint, progress: Progress) -> Path:
    """Download every missing weight file and return the folder; ``progress`` gets bytes.

    Raises ``CheckpointError`` where the hub or the connection fails for good and ``StorageError``
    where the disk is full. A file that broke off starts anew in the next call.
    """
    total, stop, counters = checkpoint.missing_bytes, Event(), list[Any]()

    class Counter(hub_utils().tqdm):  # type: ignore[misc]
        """Count bytes instead of drawing, and end the download when it is stopped."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            if kwargs.get("unit") == "B":
                counters.append(self)

        def update(self, n: float | None = 1) -> None:
            if stop.is_set():
                raise Interrupted("the download was stopped")
            self.n += n or 0

    with ThreadPoolExecutor(1) as pool:
        snapshot = checkpoint.snapshot
        download = pool.submit(fetch, snapshot.hub_id, snapshot.commit, bars=Counter)
        try:
            while wait([download], _REPORT_EVERY_S).not_done:
                progress(min(max((int(c.n) for c in counters), default=0), total), total)
        finally:
            stop.set()
    folder = download.result()
    progress(total, total)
    return folder


def has_weights(folder: Path) -> bool:
    """Whether every weight file of a folder in the cache is there."""
    index = folder / INDEX
    if not index.exists():
        return any(folder.glob(_WEIGHTS))
    weight_map = read_json(index).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    return all((folder / str(name)).exists() for name in names)


def read_repository(ref: str, folder: Path) -> HubCheckpoint:
    """What the hub has at the commit of ``folder``: one request, no file is downloaded."""
    from huggingface_hub import HfApi

    snapshot = snapshot_of(folder)
    assert snapshot is not None, folder
    with hub_errors(ref, snapshot.commit):
        info = HfApi().model_info(
            ref, revision=snapshot.commit, files_metadata=True, timeout=_TIMEOUT_S
        )
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    weights = {
        name: size
        for name, size in sizes.items()
        if fnmatch(name, _WEIGHTS) and not any(fnmatch(name, each) for each in _UNWANTED)
    }
    there = {file.name for file in folder.iterdir() if file.exists()}
    missing = {name: size for name, size in weights.items() if name not in there}
    others = tuple(name for name in sizes if "/" not in name and name not in there | {*weights})
    return HubCheckpoint(
        snapshot=snapshot, folder=folder, weights=weights, missing=missing, others=others
    )


def hub_utils() -> Any:
    """Return the functions that huggingface_hub exports without types."""
    from huggingface_hub import utils

    return utils


@contextmanager
def hub_errors(ref: str, revision: str | None) -> Iterator[None]:
    """Turn a failure to read or download ``ref`` into ``CheckpointError`` with the fix.

    A full disk is a ``StorageError``. The library draws and logs nothing: its lines would break
    the console's.
    """
    from huggingface_hub import errors

    # The hub's errors derive from those of its HTTP library: httpx in version 1, httpx2 in 2.
    beneath: Any = next(cls for cls in errors.HfHubHTTPError.__mro__ if cls.__name__ == "HTTPError")
    hub_utils().disable_progress_bars()
    hub_utils().logging.set_verbosity_error()
    try:
        yield
    except (beneath, OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) in NO_SPACE:
            from huggingface_hub import constants

            with translate_disk_errors(Path(constants.HF_HUB_CACHE)):
                raise
        raise CheckpointError(_sentence(ref, revision, error)) from error


def _sentence(ref: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    for kind, words in (
        (errors.GatedRepoError, "is gated: accept its terms on its hub page, then set HF_TOKEN"),
        (errors.RevisionNotFoundError, f"has no revision {revision!r}; correct model.revision"),
        (
            errors.RepositoryNotFoundError,
            "is neither a folder here nor a model on the hub; correct the name, or set HF_TOKEN if "
            "it is private",
        ),
    ):
        if isinstance(error, kind):
            return f"{ref} {words}"
    responses = (getattr(each, "response", None) for each in _causes(error))
    status = next(
        (code for each in responses if (code := getattr(each, "status_code", None))), None
    )
    offline = any(isinstance(each, errors.OfflineModeIsEnabled) for each in _causes(error))
    if offline or (status is None and isinstance(error, errors.LocalEntryNotFoundError)):
        reached = "the hub cannot be reached; check the network"
        reason = "HF_HUB_OFFLINE is set; unset it" if offline else reached
        return f"{ref}{at} is not complete in the local cache and {reason}, or give a local folder"
    if status == HTTPStatus.UNAUTHORIZED:
        return f"the hub does not accept the token for {ref} (401); correct HF_TOKEN or unset it"
    lines = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
    stated = redact(lines or type(error).__name__).rstrip(".:")
    reason = stated if status is None else f"it answers {status}"
    return f"{ref}{at} cannot be fetched from the hub ({reason}); try again, or give a local folder"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


_MARK: Final = ".headers-only"
_BLOCK_BYTES: Final = 100_000
"""97% of the hub's safetensors headers are shorter, by huggingface_hub's count."""
_MAX_HEADER_BYTES: Final = 100 * MIB
_SMALL_TENSORS: Final = (".weight_shape", ".k_scale", ".v_scale")
"""Tensors of a few bytes whose values the checks read."""
_AT_ONCE: Final = 8
_PREFIX_BYTES: Final = 8


def write_hollow(checkpoint: HubCheckpoint, folder: Path) -> None:
    """Write the checkpoint to ``folder``; its small files are links into the hub's cache."""
    from huggingface_hub import HfFileSystem

    folder.mkdir(parents=True)
    for file in checkpoint.folder.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    for name in checkpoint.others:  # pickles and GGUF: a refusal names them
        (folder / name).touch()
    (folder / _MARK).touch()
    snapshot, hub = checkpoint.snapshot, HfFileSystem(skip_instance_cache=True)

    def fetch(name: str) -> None:
        size = checkpoint.missing[name]
        path = f"{snapshot.hub_id}@{snapshot.commit}/{name}"
        with (
            hub.open(path, size=size, block_size=_BLOCK_BYTES) as remote,
            (folder / name).open("wb") as local,
        ):
            prefix = remote.read(_PREFIX_BYTES)
            header = remote.read(min(int.from_bytes(prefix, "little"), _MAX_HEADER_BYTES))
            local.write(prefix + header)
            for start, stop in sorted(_small_spans(header)):
                remote.seek(start)
                local.seek(start)
                local.write(remote.read(stop - start))
            local.truncate(size)

    with hub_errors(snapshot.hub_id, snapshot.commit), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(fetch, checkpoint.missing))


def is_hollow(folder: Path) -> bool:
    """Return whether a folder has headers without weights."""
    return (folder / _MARK).exists()


def _small_spans(header: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the small tensors are in the file; nothing for a header that is not valid."""
    data_start = _PREFIX_BYTES + len(header)
    try:
        for name, entry in json_value(header).items():
            if name.endswith(_SMALL_TENSORS):
                start, stop = entry["data_offsets"]
                yield data_start + start, data_start + stop
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # reading the folder says what is wrong with it
