"""Servers that come up at the same time: what ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import resolved
from tests.flow.crowd import Crowd, Ear
from whet.core.errors import StorageError
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.engines.together import Start, start_together


def start(crowd: Crowd, folder: Path, *names: str) -> None:
    """Start servers of these names, wait for all of them and stop them."""
    one = resolved()
    wanted = [
        Start(
            engine=crowd,  # type: ignore[arg-type]
            resolved=replace(one, variant=replace(one.variant, name=name)),
            log=folder / f"{name}.log",
        )
        for name in names
    ]
    with start_together(wanted) as group:
        group.await_all(Ear())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("the disk is full")])
def test_a_start_that_ends_the_run_stops_those_that_are_up_and_those_on_their_way(
    tmp_path: Path, error: BaseException
) -> None:
    crowd = Crowd(meet=threading.Barrier(3), broken={"b": error}, hanging={"c"})
    with pytest.raises(type(error)):
        start(crowd, tmp_path, "a", "b", "c")
    assert crowd.up == set()
    assert ("gave up", "c") in crowd.events
    assert not [t for t in threading.enumerate() if t.name.startswith("whet-start")]


def test_a_server_that_cannot_be_stopped_is_told(tmp_path: Path) -> None:
    class Clinging(Crowd):
        @contextmanager
        def serve(self, resolved: ResolvedEngine, **given: Any) -> Iterator[Server]:
            with Crowd.serve(self, resolved, **given) as server:
                yield server
            if resolved.variant.name == "b":
                raise StorageError("the log is gone")

    crowd = Clinging()
    with pytest.raises(StorageError, match="the log is gone"):
        start(crowd, tmp_path, "b", "c")
    assert crowd.up == set()
