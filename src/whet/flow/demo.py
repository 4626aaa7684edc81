"""``whet demo``: the spec of the demo run, and the recorded run."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whet.core.protocols import Observer
    from whet.core.store import RunStore


def write_demo_spec(file: Path) -> None:
    """Write the spec of the demo on the bundled pair."""
    from whet.demo import write_spec

    write_spec(file)


def replay_recorded(root: Path, observer: Observer) -> RunStore:
    """Decide the recorded run again in the new folder ``root``, and return its store.

    A ``root`` that exists is decided again as it is.
    """
    from whet.core.staging import staged
    from whet.core.store import RunStore, translate_disk_errors
    from whet.demo.bundled import RECORDED
    from whet.flow.run.conclude.conclude import conclude

    if not root.exists():
        with staged(root) as stage, tarfile.open(RECORDED) as tar, translate_disk_errors(root):
            for member in tar.getmembers():
                member.name = member.name.removeprefix("run/")
                tar.extract(member, stage.folder)
            stage.keep()
    with RunStore.open(root, resume=True) as store:
        conclude(store, observer)
        return store
