"""A model on the hub: its commit, its small files, and the sizes of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json
from whet.checkpoint.headers import INDEX
from whet.checkpoint.hub_errors import hub_errors
from whet.core.hub import Snapshot, snapshot_of

# An allow-list: pickles (*.bin, *.pt) and code (*.py) are never fetched.
_SMALL: Final = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_WEIGHTS: Final = "*.safetensors"
_UNWANTED: Final = ("consolidated*", "original/*", "onnx/*", "*/*")
_TIMEOUT_S: Final = 10.0
_STREAM_TIMEOUT_S: Final = 30.0
PARTIAL: Final = ".whet.incomplete"
"""The suffix of a file in the hub's cache whose download broke off."""


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
    def blobs(self) -> Path:
        """Where the hub's cache stores the files' contents."""
        return self.folder.parents[1] / "blobs"

    def missing_bytes(self) -> int:
        """Bytes still to be downloaded, without those of downloads that broke off."""
        started = sum(file.stat().st_size for file in self.blobs.glob(f"*{PARTIAL}"))
        return max(sum(self.missing.values()) - started, 0)


def fetch_all(ref: str, revision: str | None) -> Path:
    """The folder of a hub id with all its files, from the cache or downloaded."""
    return _fetch(ref, revision, (_WEIGHTS, *_SMALL))


def fetch_small_files(ref: str, revision: str | None) -> Path:
    """The folder of a hub id with its configuration and tokenizer, weights only if cached."""
    _utils().disable_progress_bars()
    return _fetch(ref, revision, _SMALL)


def _fetch(ref: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    unwanted = list(_UNWANTED)
    with hub_errors(ref, revision):
        return Path(
            snapshot_download(
                ref, revision=revision, allow_patterns=list(patterns), ignore_patterns=unwanted
            )
        )


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


@contextmanager
def stream(snapshot: Snapshot, name: str, start: int, stop: int | None = None) -> Iterator[Any]:
    """The hub's answer to a request for a file's bytes from ``start``, ``stop`` not included."""
    from huggingface_hub import get_session, hf_hub_url

    url = hf_hub_url(snapshot.hub_id, name, revision=snapshot.commit)
    headers = {**_utils().build_hf_headers(), "Accept-Encoding": "identity"}
    if start or stop is not None:
        headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    with get_session().stream("GET", url, headers=headers, timeout=_STREAM_TIMEOUT_S) as response:
        _utils().hf_raise_for_status(response)
        yield response


def _utils() -> Any:
    """Functions that huggingface_hub exports without types."""
    from huggingface_hub import utils

    return utils
