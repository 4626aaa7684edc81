"""A finished checkpoint to the model hub: its own files and a card, in one commit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.core.errors import CheckpointError, StorageError, UsageError
from whet.core.protocols import Observer
from whet.core.records import QuantizedCheckpoint, decode, encode
from whet.core.units import human_bytes
from whet.flow.quantize.card import CARD, MARK, Lineage, licence_of, model_card, read_front_matter
from whet.flow.quantize.hub import hub_errors, hub_failures, patiently, require_login
from whet.quant.finished import RECORD

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_PUSH_AGAIN: Final = (
    "push again later: the checkpoint stays, and what was uploaded is not sent twice"
)
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".gguf")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finished:
    """A checkpoint folder, its record, and the files that the record lists."""

    folder: Path
    record: dict[str, Any]
    done: QuantizedCheckpoint
    names: tuple[str, ...]


def push(
    folder: Path, repo: str, *, public: bool, observer: Observer, base: str | None = None
) -> str:
    """Upload the finished checkpoint ``folder`` to the hub repository ``repo``; returns its URL.

    ``repo`` is created where it does not exist, private unless ``public``. Only files that the
    checkpoint's record lists are sent, the record itself without the paths of this machine, and a
    card unless a person wrote one. ``base`` is the model that was quantized, as it was given: a hub
    id is named in the card, and a licence that it states is taken over. The weights come first,
    then one commit: the repository never shows half a checkpoint.

    Raises ``CheckpointError`` for a folder that is no finished checkpoint, ``UsageError`` for a
    name, token or repository that will not do, ``WhetError`` where the hub fails or is not reached.
    """
    found = _read_finished(folder)
    require_login(repo)
    from huggingface_hub import HfApi

    api = HfApi(library_name="whet")
    observer.stage("push", f"{repo}, {human_bytes(found.done.weight_bytes)}")
    with _quiet(), hub_errors(repo, again=_PUSH_AGAIN):
        url = patiently(lambda: api.create_repo(repo, private=not public, exist_ok=True))
        name = url.repo_id
        held = _require_fit(api, name, found, public=public)
        operations = _operations(found, name)
        if CARD not in held or _is_ours(api, name):
            operations[CARD] = _operation(CARD, _card(api, name, found, base))
        else:
            observer.note(f"{name} has a card of its own, which stays as it is")
        _upload(api, name, operations, observer)
    return str(url)


def _read_finished(folder: Path) -> _Finished:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        done = decode(QuantizedCheckpoint, record["quantized"])
        listed = {str(name): int(size) for name, size in record["files"].items()}
        held = {name: (folder / Path(name).name).stat().st_size for name in listed}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StorageError) as error:
        raise CheckpointError(
            f"{folder} is not a finished whet checkpoint; give the folder that whet quantize wrote"
        ) from error
    changed = [name for name, size in listed.items() if held[name] != size]
    if changed:
        raise CheckpointError(
            f"{folder} changed since it was quantized ({', '.join(changed)}); quantize again and "
            "push that"
        )
    names = tuple(Path(name).name for name in listed if Path(name).name != CARD)
    return _Finished(folder=folder, record=record, done=done, names=names)


def _require_fit(api: HfApi, name: str, found: _Finished, *, public: bool) -> set[str]:
    """The files of the repository.

    Refuses an existing public repository without ``public``, and to mix the weights of two
    checkpoints.
    """
    info = patiently(lambda: api.model_info(name))
    if not public and not info.private:
        raise UsageError(
            f"{name} exists already and is public; add --public, or choose another name"
        )
    held = {sibling.rfilename for sibling in info.siblings or ()}
    foreign = sorted(path for path in held - {*found.names} if path.endswith(_WEIGHTS))
    if foreign:
        raise UsageError(
            f"{name} holds weights of another checkpoint ({foreign[0]}), and an engine would load "
            "both; delete them on the hub, or choose another name"
        )
    return held


def _operations(found: _Finished, name: str) -> dict[str, CommitOperationAdd]:
    files = {path: _operation(path, found.folder / path) for path in found.names}
    record = json.dumps(_public_record(found, name), indent=1, ensure_ascii=False) + "\n"
    return files | {RECORD: _operation(RECORD, record)}


def _operation(path: str, content: Path | str) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd

    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=data)


def _public_record(found: _Finished, name: str) -> dict[str, Any]:
    """The record without the folders of this machine, which may name people and projects."""
    done, facts = found.done, found.done.calibration
    shown_as = {done.path: name, str(found.folder): name}
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
    return {**found.record, "quantized": encode(shown)}


def _is_ours(api: HfApi, name: str) -> bool:
    """Whether the repository's card is one that we wrote and nobody made theirs."""
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        held = api.hf_hub_download(name, CARD, local_dir=scratch)
        return MARK in Path(held).read_text(encoding="utf-8", errors="replace")


def _card(api: HfApi, name: str, found: _Finished, base: str | None) -> Path | str:
    """The person's own card from the folder, or else one of ours."""
    own = found.folder / CARD
    return own if own.is_file() else model_card(found.done, name, _lineage(api, base))


def _lineage(api: HfApi, base: str | None) -> Lineage:
    """Where the checkpoint comes from; what cannot be found out is left out of the card."""
    if base is None:
        return Lineage()
    folder = Path(base).expanduser()
    if folder.exists():
        card = folder / CARD
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return Lineage(license=licence_of(read_front_matter(text)))
    try:
        data: Any = api.model_info(base).card_data
    except hub_failures():  # no licence on the card is no reason to lose the upload
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
    patiently(
        lambda: api.create_commit(
            name, list(operations.values()), commit_message="Checkpoint quantized by whet"
        )
    )
    observer.progress("files", len(large) + 1, len(large) + 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Uploads draw bars and tell of every retry, which would tear the console's lines."""
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
