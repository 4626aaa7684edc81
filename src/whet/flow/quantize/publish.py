"""Upload a finished checkpoint to the model hub: its files and a card, in one commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.checkpoint.hub_errors import (
    first_line,
    http_status,
    hub_failures,
    hub_utils,
    is_temporary,
    silence,
)
from whet.core.errors import CheckpointError, UsageError, WhetError
from whet.core.protocols import Observer
from whet.core.records.codec import encode
from whet.core.units import human_bytes
from whet.flow.quantize.card import CARD, MARK, model_card
from whet.quant.checkpoint_record import RECORD, CheckpointRecord, read_record

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_LOGIN: Final = "run `hf auth login`, or set HF_TOKEN to a token with write access"
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".gguf")
_LICENSE_KEYS: Final = ("license", "license_name", "license_link")
_REFUSALS: Final = {
    401: f"the hub does not accept the token (401); {_LOGIN}",
    403: "the token may not write to {repo} (403); use one with write access, or a name in a "
    "namespace of yours",
    404: "the hub has no {repo} that this token can see (404); correct the name, or " + _LOGIN,
}


def require_login(repo: str) -> None:
    """Check the repository name and the token before any work.

    Raises ``UsageError`` for an invalid name or token, ``WhetError`` where the hub cannot be
    reached.
    """
    from huggingface_hub import HfApi, get_token

    with _upload_errors(repo):
        hub_utils().validate_repo_id(repo)
        if get_token() is None:
            raise UsageError("no token for the hub is set", fix=_LOGIN)
        HfApi().whoami()


def push(
    folder: Path, repo: str, *, public: bool, observer: Observer, base: str | None = None
) -> str:
    """Upload the finished checkpoint ``folder`` to the hub repository ``repo``; return its URL.

    ``repo`` is created where it does not exist, private unless ``public``. Uploads the files in the
    checkpoint's record, the record itself without the paths of this machine, and a card unless
    the repository has one of its own. ``base`` is the source model as given: the card names a hub
    id and copies the licence it states. The weights are uploaded first, then one commit shows all
    files, so the repository never shows half a checkpoint.

    Raises ``CheckpointError`` for a folder that is not a finished checkpoint, ``UsageError`` for an
    unusable name, token or repository, ``WhetError`` where the hub fails or cannot be reached.
    """
    record = _read_finished(folder)
    require_login(repo)
    from huggingface_hub import HfApi

    api = HfApi(library_name="whet")
    observer.stage("push", f"{repo}, {human_bytes(record.quantized.weight_bytes)}")
    with _upload_errors(repo):
        url = api.create_repo(repo, private=not public, exist_ok=True)
        name = url.repo_id
        files: dict[str, Path | str] = {
            path: folder / path for each in record.files if (path := Path(each).name) != CARD
        }
        existing = _require_fit(api, name, {*files}, public=public)
        shown = encode(_public_record(record, name))
        files[RECORD] = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
        if CARD not in existing or MARK in _read_card(name)[0]:
            own, source = folder / CARD, _source(base)
            files[CARD] = own if own.is_file() else model_card(record.quantized, name, *source)
        else:
            observer.note(f"{name} has a card of its own, which is not changed")
        _upload(api, name, files, observer)
    return str(url)


def _read_finished(folder: Path) -> CheckpointRecord:
    record = read_record(folder)
    if record is None:
        raise CheckpointError(
            f"{folder} is not a finished whet checkpoint",
            fix="give the folder that whet quantize wrote",
        )
    if changed := record.changed_files(folder):
        raise CheckpointError(
            f"{folder} changed since it was quantized ({', '.join(changed)})",
            fix="quantize again and push that",
        )
    return record


def _require_fit(api: HfApi, name: str, files: set[str], *, public: bool) -> set[str]:
    """Return the files of the repository.

    ``UsageError`` for an existing public repository without ``public``, and for one that holds the
    weights of another checkpoint.
    """
    info = api.model_info(name)
    if not public and not info.private:
        raise UsageError(
            f"{name} exists already and is public", fix="add --public, or choose another name"
        )
    names = {sibling.rfilename for sibling in info.siblings or ()}
    foreign = sorted(path for path in names - files if path.endswith(_WEIGHTS))
    if foreign:
        raise UsageError(
            f"{name} holds weights of another checkpoint ({foreign[0]}), and an engine would load "
            "both",
            fix="delete them on the hub, or choose another name",
        )
    return names


def _public_record(record: CheckpointRecord, name: str) -> CheckpointRecord:
    """Return the record without folders and warnings, which may name people and projects."""
    facts = record.quantized.calibration
    if facts is not None:
        facts = replace(facts, source=Path(facts.source).name, warnings=())
    shown = replace(record.quantized, path=name, calibration=facts, warnings=())
    return replace(record, quantized=shown)


def _source(base: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the hub id of the source model and its licence, as far as they are known."""
    if base is None:
        return None, {}
    local = Path(base).expanduser()
    try:
        metadata = _read_card(local / CARD if local.exists() else base)[1]
    except hub_failures():  # the upload goes on without a licence on the card
        metadata = {}
    licence = {key: metadata[key] for key in _LICENSE_KEYS if isinstance(metadata.get(key), str)}
    return None if local.exists() else base, licence


def _read_card(source: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the metadata of a card: a file, or a repository's."""
    from huggingface_hub import ModelCard

    card = ModelCard.load(source, ignore_metadata_errors=True)
    return card.content, card.data.to_dict()


def _upload(api: HfApi, name: str, files: Mapping[str, Path | str], observer: Observer) -> None:
    """Upload the files one by one, then the commit that shows them all."""
    from huggingface_hub import CommitOperationAdd

    contents = {
        path: content.encode("utf-8", "replace") if isinstance(content, str) else content
        for path, content in files.items()
    }
    operations = [CommitOperationAdd(path, content) for path, content in contents.items()]
    for number, operation in enumerate(operations):
        observer.progress("files", number, len(operations))
        api.preupload_lfs_files(name, [operation], free_memory=False)
    api.create_commit(name, operations, commit_message="Checkpoint quantized by whet")
    observer.progress("files", len(operations), len(operations))


@contextmanager
def _upload_errors(repo: str) -> Iterator[None]:
    """Translate a failure of the hub, whose library draws and logs nothing meanwhile."""
    silence()
    try:
        yield
    except hub_failures() as error:
        raise _translated(repo, error) from error


def _translated(repo: str, error: Exception) -> WhetError:
    from huggingface_hub.errors import OfflineModeIsEnabled

    status, reason = http_status(error), first_line(error)
    if isinstance(error, OfflineModeIsEnabled):
        return UsageError("HF_HUB_OFFLINE is set, so nothing can be uploaded", fix="unset it")
    if status in _REFUSALS:
        return UsageError(_REFUSALS[status].format(repo=repo))
    if not is_temporary(error):
        return UsageError(
            f"the hub refused the upload to {repo} ({reason})", fix="correct that and push again"
        )
    return WhetError(
        f"the upload to {repo} failed ({reason})",
        fix="check the network and HF_ENDPOINT, try "
        "HF_HUB_DISABLE_XET=1, and push again later: the checkpoint is not deleted, and uploaded "
        "files are not sent twice",
    )
