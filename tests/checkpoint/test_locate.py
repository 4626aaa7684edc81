"""A reference to a model is a folder, a hub id, or one clear sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import locate
from whet.checkpoint.hub import fetch
from whet.core.errors import CheckpointError


def test_a_local_folder(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("ref", ["/no/such/folder", "./missing", "a/b/c", "two words"])
def test_no_such_folder(ref: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="correct the path, or give a hub id"):
        locate(ref)


def test_a_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="give the checkpoint's folder"):
        locate(str(tmp_path / "model.safetensors"))


def test_a_gguf_file_gets_its_own_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="holds GGUF weights; give the safetensors"):
        locate(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("ref", ["owner/Name-8B-GGUF", "owner/Name-8B-GGUF:Q4_K_M", "x.GGUF"])
def test_a_hub_id_of_gguf_files_is_not_fetched(ref: str) -> None:
    with pytest.raises(CheckpointError, match=r"holds GGUF weights; .*gguf_file="):
        locate(ref)


def test_a_folder_with_only_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "q4.gguf").touch()
    with pytest.raises(CheckpointError, match=r"q4\.gguf holds GGUF weights"):
        locate(str(tmp_path))
    write_tiny_llama(tmp_path)
    assert locate(str(tmp_path)) == tmp_path


def test_only_safe_files_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def fake(ref: str, **options: Any) -> str:
        asked.update(options, ref=ref)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    assert fetch("owner/name", "main") == tmp_path
    assert (asked["ref"], asked["revision"]) == ("owner/name", "main")
    fetched = list(
        huggingface_hub.utils.filter_repo_objects(
            ["model.safetensors", "config.json", "tokenizer.model", "pytorch_model.bin", "m.py",
             "consolidated.safetensors", "original/params.json", "chat_template.jinja"],
            allow_patterns=asked["allow_patterns"],
            ignore_patterns=asked["ignore_patterns"],
        )
    )  # fmt: skip
    assert fetched == [
        "model.safetensors",
        "config.json",
        "tokenizer.model",
        "chat_template.jinja",
    ]


def hub_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    request = httpx.Request("GET", "https://hub.invalid")
    return kind("no", response=httpx.Response(404, request=request))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (hub_error(errors.RepositoryNotFoundError), "nor a model on the hub"),
        (hub_error(errors.GatedRepoError), "gated: accept its terms"),
        (hub_error(errors.RevisionNotFoundError), "no revision 'v9'"),
        (errors.LocalEntryNotFoundError("offline"), "hub cannot be reached; check the network, or"),
        (ConnectionError("reset"), "cannot be fetched from the hub \\(reset\\)"),
    ],
)
def test_hub_errors_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(ref: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=said) as caught:
        fetch("owner/name", "v9")
    assert caught.value.__cause__ is error
