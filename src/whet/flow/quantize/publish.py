"""Upload a finished checkpoint to the model hub: its files and a card, in one commit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.checkpoint.hub_errors import hub_failures
from whet.core.errors import CheckpointError, UsageError
from whet.core.protocols import Observer
from whet.core.records import encode
from whet.core.units import human_bytes
from whet.flow.quantize.card import CARD, MARK, Lineage, licence_of, model_card, read_front_matter
from whet.flow.quantize.hub import require_login, retry, upload_errors
from whet.quant.checkpoint_record import RECORD, CheckpointRecord, read_record

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_PUSH_AGAIN: Final = (
    "push again later: the checkpoint is not deleted, and uploaded files are not sent twice"
)
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".gguf")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finished:
    """A checkpoint folder and its record."""

    folder: Path
    record: CheckpointRecord

    @property
    def names(self) -> list[str]:
        """The listed files besides the card."""
        return [Path(name).name for name in self.record.files if Path(name).name != CARD]


def push(
    folder: Path, repo: str, *, public: bool, observer: Observer, base: str | None = None
) -> str:
    """Upload the finished checkpoint ``folder`` to the hub repository ``repo``; returns its URL.

    ``repo`` is created where it does not exist, private unless ``public``. Uploads the files in the
    checkpoint's record, the record itself without the paths of this machine, and a card unless
    the repository has one of its own. ``base`` is the source model as given: the card names a hub
    id and copies the licence it states. The weights are uploaded first, then one commit shows all
    files, so the repository never shows half a checkpoint.

    Raises ``CheckpointError`` for a folder that is not a finished checkpoint, ``UsageError`` for an
    unusable name, token or repository, ``WhetError`` where the hub fails or cannot be reached.
    """
    finished = _read_finished(folder)
    require_login(repo)
    from huggingface_hub import HfApi

    api = HfApi(library_name="whet")
    observer.stage("push", f"{repo}, {human_bytes(finished.record.quantized.weight_bytes)}")
    with _quiet(), upload_errors(repo, again=_PUSH_AGAIN):
        url = retry(lambda: api.create_repo(repo, private=not public, exist_ok=True))
        name = url.repo_id
        existing = _require_fit(api, name, finished, public=public)
        operations = _operations(finished, name)
        if CARD not in existing or _is_ours(api, name):
            operations[CARD] = _operation(CARD, _card(api, name, finished, base))
        else:
            observer.note(f"{name} has a card of its own, which is not changed")
        _upload(api, name, operations, observer)
    return str(url)


def _read_finished(folder: Path) -> _Finished:
    record = read_record(folder)
    if record is None:
        raise CheckpointError(
            f"{folder} is not a finished whet checkpoint; give the folder that whet quantize wrote"
        )
    if changed := record.changed_files(folder):
        raise CheckpointError(
            f"{folder} changed since it was quantized ({', '.join(changed)}); quantize again and "
            "push that"
        )
    return _Finished(folder=folder, record=record)


def _require_fit(api: HfApi, name: str, finished: _Finished, *, public: bool) -> set[str]:
    """The files of the repository.

    ``UsageError`` for an existing public repository without ``public``, and for one that holds the
    weights of another checkpoint.
    """
    info = retry(lambda: api.model_info(name))
    if not public and not info.private:
        raise UsageError(
            f"{name} exists already and is public; add --public, or choose another name"
        )
    names = {sibling.rfilename for sibling in info.siblings or ()}
    foreign = sorted(path for path in names - {*finished.names} if path.endswith(_WEIGHTS))
    if foreign:
        raise UsageError(
            f"{name} holds weights of another checkpoint ({foreign[0]}), and an engine would load "
            "both; delete them on the hub, or choose another name"
        )
    return names


def _operations(finished: _Finished, name: str) -> dict[str, CommitOperationAdd]:
    files = {path: _operation(path, finished.folder / path) for path in finished.names}
    public = encode(_public_record(finished, name))
    record = json.dumps(public, indent=1, ensure_ascii=False) + "\n"
    return files | {RECORD: _operation(RECORD, record)}


def _operation(path: str, content: Path | str) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd

    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=data)


def _public_record(finished: _Finished, name: str) -> CheckpointRecord:
    """The record without the folders of this machine, which may name people and projects."""
    done = finished.record.quantized
    facts = done.calibration
    shown_as = {done.path: name, str(finished.folder): name}
    if facts is not None:
        shown_as[facts.source] = Path(facts.source).name

    def public(sentences: tuple[str, ...]) -> tuple[str, ...]:
        for path, shown in shown_as.items():
            sentences = tuple(sentence.replace(path, shown) for sentence in sentences)
        return sentences

    if facts is not None:
        source = shown_as[facts.source]
        facts = replace(facts, source=source, warnings=public(facts.warnings))
    shown = replace(done, path=name, calibration=facts, warnings=public(done.warnings))
    return replace(finished.record, quantized=shown)


def _is_ours(api: HfApi, name: str) -> bool:
    """Whether the repository's card carries the mark of whet."""
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        card = api.hf_hub_download(name, CARD, local_dir=scratch)
        return MARK in Path(card).read_text(encoding="utf-8", errors="replace")


def _card(api: HfApi, name: str, finished: _Finished, base: str | None) -> Path | str:
    """The card in the folder, or else a generated one."""
    own = finished.folder / CARD
    return (
        own if own.is_file() else model_card(finished.record.quantized, name, _lineage(api, base))
    )


def _lineage(api: HfApi, base: str | None) -> Lineage:
    """The source model and its licence, as far as they are known."""
    if base is None:
        return Lineage()
    folder = Path(base).expanduser()
    if folder.exists():
        card = folder / CARD
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return Lineage(license=licence_of(read_front_matter(text)))
    try:
        data: Any = api.model_info(base).card_data
    except hub_failures():  # the upload goes on without a licence on the card
        data = None
    return Lineage(base_model=base, license=licence_of(data.to_dict() if data else None))


def _upload(
    api: HfApi, name: str, operations: dict[str, CommitOperationAdd], observer: Observer
) -> None:
    """The large files one by one, then the commit that shows them with all others."""
    large = [path for path in operations if path.endswith(".safetensors")]
    for number, path in enumerate(large):
        observer.progress("files", number, len(large) + 1)
        api.preupload_lfs_files(name, [operations[path]], free_memory=False)
    observer.progress("files", len(large), len(large) + 1)
    retry(
        lambda: api.create_commit(
            name, list(operations.values()), commit_message="Checkpoint quantized by whet"
        )
    )
    observer.progress("files", len(large) + 1, len(large) + 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and retry messages of the library, which break the console's lines."""
    from huggingface_hub import utils as untyped

    utils: Any = untyped
    hidden, level = utils.are_progress_bars_disabled(), utils.logging.get_verbosity()
    utils.disable_progress_bars()
    utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        utils.logging.set_verbosity(level)
        if not hidden:
            utils.enable_progress_bars()
