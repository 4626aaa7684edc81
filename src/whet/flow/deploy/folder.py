"""The folder of a bundle, written whole or not at all, and the commands that start it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.quote import shell_word
from whet.core.records.bundle import Bundle
from whet.core.staging import staged
from whet.core.store import read_record, translate_disk_errors
from whet.deploy.render import get_target, write_file

RECORD: Final = "bundle.json"
PREVIOUS: Final = "previous"
SECRETS: Final = ".env"
_KEYS: Final = "cp {folder}/.env.example {keys}  # then set the keys in it"
_LOCAL: Final = "sh {folder}/serve.sh"
_WATCH: Final = "whet watch {folder} --url http://127.0.0.1:8000"
_FORWARD: Final = "  # after kubectl port-forward pod/NAME 8000 -n {namespace}"


def read_bundle(folder: Path) -> Bundle | None:
    """What ``folder`` deploys; None where it is absent or empty.

    Raises ``UsageError`` for a folder of other files, ``StorageError`` for a damaged record.
    """
    path = folder / RECORD
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} holds other files", fix="choose another --output-dir")
        return None
    return read_record(path, Bundle, fix=f"move {folder} away and repeat")


def replace_bundle(folder: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` as the new bundle in ``folder``.

    The bundle before goes into ``previous/``, without its own previous one. ``.env`` with the keys
    stays beside the new bundle and is copied nowhere else.
    """
    folder = Path(os.path.realpath(folder))
    aside = folder.with_name(f".{folder.name}.replaced")
    with translate_disk_errors(folder):
        if aside.exists() and not folder.exists():  # a kill between the two renames below
            aside.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)
    with staged(folder) as stage:
        for name, text in files.items():
            write_file(stage.folder / name, text)
        with translate_disk_errors(folder):
            if (folder / RECORD).exists():
                _keep(folder, stage.folder)
            if folder.exists():
                folder.rename(aside)
        try:
            stage.keep()
        except BaseException:
            if aside.exists():
                aside.rename(folder)
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _keep(folder: Path, new: Path) -> None:
    """Copy the bundle in ``folder`` to ``previous/`` of the new one, and its keys beside it."""

    def left_out(parent: str, names: list[str]) -> list[str]:
        top = Path(parent) == folder
        return [name for name in names if top and name in (PREVIOUS, SECRETS)]

    shutil.copytree(folder, new / PREVIOUS, ignore=left_out, symlinks=True)
    if (folder / SECRETS).exists():
        shutil.copy2(folder / SECRETS, new / SECRETS)


def steps_of(bundle: Bundle, folder: Path, previous: Bundle | None) -> dict[str, list[str]]:
    """Return the commands that start, watch and replace ``folder``, by what they are for.

    The keys come first where .env is missing. What was measured on a CPU starts there by its
    script; its container is for a GPU.
    """
    target = get_target(bundle.target)
    keys = [] if (folder / SECRETS).exists() else [_KEYS]
    start, monitor = [*keys, *target.start], [target.monitoring] if target.monitoring else []
    watch = [_WATCH + _FORWARD * target.cluster]
    steps = {"Start": start, "Watch": watch, "Monitor": monitor}
    if bundle.device == "cpu":
        steps = {"Start": [_LOCAL], "Watch": watch, "On a GPU": [*start, *monitor]}
    filled = {name: [_filled(x, bundle, folder) for x in each] for name, each in steps.items()}
    if previous is None:
        return {**filled, "Roll back": []}
    local = previous.device == "cpu"
    back = _LOCAL.replace("folder", "previous") if local else get_target(previous.target).rollback
    return {**filled, "Roll back": [_filled(back, previous, folder)]}


def _filled(step: str, bundle: Bundle, folder: Path) -> str:
    return step.format(
        folder=_word(folder),
        keys=_word(folder / SECRETS),
        previous=_word(folder / PREVIOUS),
        name=shell_word(bundle.name),
        namespace=shell_word(bundle.namespace or "default"),
    )


def _word(path: Path) -> str:
    return shell_word(str(path))
