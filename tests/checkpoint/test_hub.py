"""A model on the hub: its headers without its weights, and a download that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.checkpoint.test_stored import compressed, write_stored
from tests.checkpoint_factory import write_tiny_llama
from tests.model_hub import TOKEN, Model, ModelHub, model_hub
from whet.checkpoint import read_facts
from whet.checkpoint.hub import (
    HubCheckpoint,
    fetch,
    fetch_weights,
    has_weights,
    read_repository,
    write_hollow,
)
from whet.core.errors import CheckpointError, StorageError
from whet.core.units import GB
from whet.demo import pair_paths

NAME = "owner/name"
WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    with model_hub(monkeypatch, tmp_path / "cache") as running:
        yield running


def remote(hub: ModelHub, folder: Path, revision: str | None = None) -> HubCheckpoint:
    """The checkpoint of ``folder`` as the hub describes it."""
    hub.models.setdefault(NAME, Model(folder))
    return read_repository(NAME, fetch(NAME, revision, weights=False))


@pytest.mark.parametrize("kind", ["demo", "packed"])
def test_the_headers_say_what_the_whole_folder_says(
    kind: str, hub: ModelHub, tmp_path: Path
) -> None:
    """A packed checkpoint stores the shapes of its matrices as small tensors."""
    folder = pair_paths()[0]
    if kind == "packed":
        folder = write_stored(tmp_path / "packed", compressed(4, 128))
    checkpoint = remote(hub, folder)
    hollow = tmp_path / "hollow"
    write_hollow(checkpoint, hollow)
    assert replace(read_facts(hollow), path="", weights_sha256="") == replace(
        read_facts(folder), path="", weights_sha256=""
    )
    assert hub.sent[WEIGHTS] < max(200_000, folder.joinpath(WEIGHTS).stat().st_size // 10)


def test_pickles_are_not_fetched_and_named(hub: ModelHub, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    (folder / "modeling.py").write_text("raise SystemExit")
    checkpoint = remote(hub, folder)
    write_hollow(checkpoint, tmp_path / "hollow")
    with pytest.raises(CheckpointError, match="holds pickled weights only"):
        read_facts(tmp_path / "hollow")
    assert hub.sent["pytorch_model.bin"] == hub.sent["modeling.py"] == 0


def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)  # the library's pauses
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**16)
    folder = pair_paths()[0]
    size = (folder / WEIGHTS).stat().st_size
    hub.cut[WEIGHTS] = size // 5
    checkpoint = remote(hub, folder)
    steps: list[tuple[int, int]] = []
    path = fetch_weights(checkpoint, lambda done, total: steps.append((done, total)))
    assert hub.sent[WEIGHTS] < 2 * size
    assert steps[-1] == (size, size)
    assert has_weights(path)
    assert read_facts(path).weights_sha256 == read_facts(folder).weights_sha256
    assert (read_facts(path).hub_id, read_facts(path).commit) == (NAME, hub.models[NAME].commit)


def test_a_hub_that_falls_silent_is_given_up_and_the_next_command_starts_anew(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)  # the library's pauses
    folder = pair_paths()[0]
    hub.cut[WEIGHTS] = 0
    checkpoint = remote(hub, folder)
    with pytest.raises(CheckpointError, match=f"{NAME} at revision .* cannot be fetched"):
        fetch_weights(checkpoint, lambda _done, _total: None)
    assert not has_weights(checkpoint.folder)
    hub.cut.clear()
    assert has_weights(fetch_weights(checkpoint, lambda _done, _total: None))


def test_a_command_that_is_stopped_ends_its_download(
    hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives in the main thread while others write a file that would take hours."""
    folder = write_tiny_llama(tmp_path / "model")
    with (folder / WEIGHTS).open("r+b") as file:
        file.truncate(40 * GB)
    monkeypatch.setattr("whet.checkpoint.hub._REPORT_EVERY_S", 0.01)
    checkpoint = remote(hub, folder)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_weights(checkpoint, interrupt)
    assert not has_weights(checkpoint.folder)
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_a_disk_that_fills_up_is_a_storage_error(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource
    import signal

    checkpoint = remote(hub, pair_paths()[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match="is full; free some space"):
            fetch_weights(checkpoint, lambda _done, _total: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(
    ("access", "status", "revision", "sentence"),
    [
        ("missing", None, None, "nor a model on the hub; correct the name"),
        ("private", None, None, "set HF_TOKEN if it is private"),
        ("gated", None, None, "is gated: accept its terms on its hub page"),
        ("public", 503, None, r"cannot be fetched from the hub \(it answers 503\); try again"),
        ("public", None, "v9", "has no revision 'v9'; correct model.revision"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(
    hub: ModelHub,
    tmp_path: Path,
    access: str,
    status: int | None,
    revision: str | None,
    sentence: str,
) -> None:
    if access != "missing":
        hub.models[NAME] = Model(write_tiny_llama(tmp_path / "model"), access=access)
    hub.status = status
    with pytest.raises(CheckpointError, match=sentence):
        fetch(NAME, revision, weights=False)


@pytest.mark.parametrize("access", ["private", "gated"])
def test_a_token_opens_what_it_may_read(
    hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.models[NAME] = Model(write_tiny_llama(tmp_path / "model"), access=access)
    checkpoint = remote(hub, tmp_path / "model")
    assert has_weights(fetch_weights(checkpoint, lambda _done, _total: None))


def test_offline_a_complete_cache_is_enough_and_an_incomplete_one_is_named(
    hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    incomplete = "not complete in the local cache and HF_HUB_OFFLINE is set; unset it"
    with pytest.raises(CheckpointError, match=incomplete):
        remote(hub, folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    checkpoint = remote(hub, folder)  # the small files alone
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=incomplete):
        remote(hub, folder)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fetch_weights(checkpoint, lambda _done, _total: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert has_weights(fetch(NAME, None, weights=False))
