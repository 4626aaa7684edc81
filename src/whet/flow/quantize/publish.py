"""Upload a finished checkpoint to the model hub: its files and a card, in one commit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import hub_errors as hub
from whet.core.errors import CheckpointError, UsageError, WhetError
from whet.core.protocols import Observer
from whet.core.records.codec import encode
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.units import human_bytes
from whet.quant.checkpoint_record import RECORD, CheckpointRecord, read_record
from whet.report.writers.markdown import safe

CARD: Final = "README.md"
MARK: Final = "<!-- Written by whet. Without this line, whet leaves the card as it is. -->"
_LOGIN: Final = "run `hf auth login`, or set HF_TOKEN to a token with write access"
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".gguf")
_LICENSE_KEYS: Final = ("license", "license_name", "license_link")
_REFUSALS: Final = {
    401: ("the hub does not accept the token (401)", _LOGIN),
    403: ("the token may not write to {repo} (403)", "use one with write access"),
    404: ("the hub has no {repo} that this token can see (404)", f"correct it, or {_LOGIN}"),
}


def require_login(repo: str) -> None:
    """Raise ``UsageError`` for an invalid name or token, ``WhetError`` where no hub answers."""
    from huggingface_hub import HfApi, get_token

    with _upload_errors(repo):
        hub.hub_utils().validate_repo_id(repo)
        if get_token() is None:
            raise UsageError("no token for the hub is set", fix=_LOGIN)
        HfApi().whoami()


def push(
    folder: Path, repo: str, *, public: bool, observer: Observer, base: str | None = None
) -> str:
    """Upload the finished checkpoint ``folder`` to the hub repository ``repo``; return its URL.

    ``repo`` is created where it does not exist, private unless ``public``. The record is sent
    without this machine's paths; the card names ``base``, the source model, if it is a hub id.

    Raises ``CheckpointError`` for a folder that is not finished, ``UsageError`` for an unusable
    name, token or repository, ``WhetError`` where the hub fails.
    """
    record = read_record(folder)
    if record is None or record.changed_files(folder):
        raise CheckpointError(
            f"{folder} is not a finished whet checkpoint, or a file of it changed",
            fix="give the folder that whet quantize wrote",
        )
    require_login(repo)
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(library_name="whet")
    observer.stage("push", f"{repo}, {human_bytes(record.quantized.weight_bytes)}")
    with _upload_errors(repo):
        name = (url := api.create_repo(repo, private=not public, exist_ok=True)).repo_id
        names = sorted({Path(each).name for each in record.files} - {CARD})
        existing = _require_fit(api.model_info(name), names, public=public)
        text = json.dumps(encode(shown := _public_record(record, name)), ensure_ascii=False)
        files: dict[str, Path | bytes] = {each: folder / each for each in names}
        files[RECORD] = text.encode("utf-8", "replace")
        if CARD in existing and MARK not in _read_card(name).content:
            observer.note(f"{name} has a card of its own, which is not changed")
        elif (folder / CARD).is_file():
            files[CARD] = folder / CARD
        else:
            files[CARD] = _card(shown.quantized, base).encode("utf-8", "replace")
        operations = [CommitOperationAdd(*item) for item in files.items()]
        api.create_commit(name, operations, commit_message="Checkpoint quantized by whet")
    return str(url)


def _require_fit(info: Any, names: list[str], *, public: bool) -> set[str]:
    """Return the repository's files; refuse a public one, and weights of another checkpoint."""
    if not public and not info.private:
        raise UsageError(
            f"{info.id} exists already and is public", fix="add --public, or choose another name"
        )
    existing = {sibling.rfilename for sibling in info.siblings or ()}
    for foreign in sorted(each for each in existing - {*names} if each.endswith(_WEIGHTS)):
        raise UsageError(
            f"{info.id} holds weights of another checkpoint ({foreign}), and engines load both",
            fix="delete them on the hub, or choose another name",
        )
    return existing


def _public_record(record: CheckpointRecord, name: str) -> CheckpointRecord:
    """Return the record without folders and warnings, which may name people and projects."""
    facts = record.quantized.calibration
    if facts is not None:
        facts = replace(facts, source=Path(facts.source).name, warnings=())
    shown = replace(record.quantized, path=name, calibration=facts, warnings=())
    return replace(record, quantized=shown)


def _card(done: QuantizedCheckpoint, base: str | None) -> str:
    """Return the card: base model and licence, and the record's plain fields."""
    from huggingface_hub import ModelCard, ModelCardData

    data: dict[str, Any] = {"tags": ["whet", done.scheme.lower(), done.method]}
    if base is not None:
        local = Path(base).expanduser()
        if not local.exists():
            data |= {"base_model": base, "base_model_relation": "quantized"}
        with suppress(*hub.hub_failures()):  # the upload goes on without a licence on the card
            stated = _read_card(local / CARD if local.exists() else base).data.to_dict()
            data |= {key: stated[key] for key in _LICENSE_KEYS if isinstance(stated.get(key), str)}
    fields = {**encode(done), **encode(done.calibration or {})}.items()
    shown = (item for item in fields if isinstance(item[1], str | int | float))
    text = "\n".join(f"- {safe(key)}: {safe(str(value))}" for key, value in shown)
    return str(ModelCard(f"---\n{ModelCardData(**data).to_yaml()}\n---\n\n{MARK}\n\n{text}\n"))


def _read_card(source: str | Path) -> Any:
    from huggingface_hub import ModelCard

    return ModelCard.load(source, ignore_metadata_errors=True)


@contextmanager
def _upload_errors(repo: str) -> Iterator[None]:
    """Translate a failure of the hub, whose library draws and logs nothing meanwhile."""
    hub.silence()
    try:
        yield
    except hub.hub_failures() as error:
        status, reason = hub.http_status(error), hub.first_line(error)
        if status in _REFUSALS:
            cause, fix = _REFUSALS[status]
            raise UsageError(cause.format(repo=repo), fix=fix) from error
        if not hub.is_temporary(error):
            cause = f"the hub refused the upload to {repo} ({reason})"
            raise UsageError(cause, fix="correct that and push again") from error
        raise WhetError(
            f"the upload to {repo} failed ({reason})",
            fix="check the network and HF_ENDPOINT, and push again: what was uploaded is not sent "
            "twice",
        ) from error
