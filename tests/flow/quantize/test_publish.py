"""Publishing, by the real client over real HTTP to a stand-in of the hub."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from tests.hub_standin import TOKEN, Hub, Repo, hub_standin
from whet.core.errors import CheckpointError, UsageError, WhetError
from whet.core.protocols import Silent
from whet.core.records.codec import encode
from whet.core.records.quant import CalibrationFacts, QuantizedCheckpoint, UnitError
from whet.flow.quantize.publish import CARD, MARK, push, require_login
from whet.quant.checkpoint_record import RECORD

REPO = "alice/whetted"
FILES = {
    "config.json": b'{"model_type": "llama"}\n',
    "model-00001-of-00002.safetensors": bytes(range(256)) * 300,
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "model.safetensors.index.json": b'{"weight_map": {}}\n',
    "tokenizer.json": '{"caf\u00e9": 1}'.encode(),
    "LICENSE": b"do as you like\n",
}


@dataclass
class Heard(Silent):
    """An observer that remembers what it was told."""

    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_standin() as running:
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no" / "token"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(time, "sleep", lambda _seconds: None)  # the library's pauses
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "home" / "carol" / "secret-project")


def write_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    log = f"{folder.parent}/requests.jsonl"
    facts = CalibrationFacts(
        source=log,
        sha256="c" * 64,
        samples=512,
        tokens=200_000,
        max_tokens=512,
        seed=7,
        warnings=(f"the last line of {log} is torn",),
    )
    units = [
        UnitError(unit=f"layers.{i}.{kind}", error=0.01 * (i + 1), rtn_error=0.05, ratio=0.5)
        for i in range(3)
        for kind in ("qkv", "down")
    ]
    done = QuantizedCheckpoint(
        path=str(folder),
        method="awq",
        scheme="W4A16",
        group_size=128,
        source_weights_sha256="a" * 64,
        weights_sha256="b" * 64,
        weight_bytes=82_800,
        bits_per_weight=4.16,
        calibration=facts,
        units=tuple(units),
        seconds=42.0,
        peak_memory_bytes=None,
        device="cpu",
        writer="llm-compressor 0.14.0",
    )
    record = {
        "origin": {"source_weights_sha256": "a" * 64, "recipe": {}, "calibration_sha256": "c" * 64},
        "quantized": encode(done),
        "files": {name: len(data) for name, data in FILES.items()},
    }
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    return folder


def send(folder: Path, repo: str = REPO, *, public: bool = False, base: str | None = None) -> str:
    return push(folder, repo, public=public, observer=Silent(), base=base)


def front_matter(card: bytes) -> dict[str, object]:
    result = yaml.safe_load(card.decode().split("---\n")[1])
    assert isinstance(result, dict)
    return result


def test_the_bytes_arrive_and_nothing_else(hub: Hub, checkpoint: Path) -> None:
    (checkpoint / "notes.txt").write_text("the key is under the mat")
    (checkpoint / ".cache").mkdir()
    url = send(checkpoint)
    assert url == f"{hub.url}/{REPO}"
    repo = hub.repos[REPO]
    assert repo.private
    assert {name: repo.files[name] for name in FILES} == FILES
    assert set(repo.files) == {*FILES, RECORD, CARD, ".gitattributes"}
    assert len(repo.commits) == 1, "the repository never shows half a checkpoint"
    assert not (checkpoint / CARD).exists()


def test_the_record_names_no_folder_of_this_machine(hub: Hub, checkpoint: Path) -> None:
    send(checkpoint)
    files = hub.repos[REPO].files
    assert not [name for name, data in files.items() if b"carol" in data]
    record = json.loads(files[RECORD])
    assert record["quantized"]["path"] == REPO
    assert record["quantized"]["calibration"]["source"] == "requests.jsonl"
    assert record["quantized"]["calibration"]["warnings"] == []
    assert record["files"] == {name: len(data) for name, data in FILES.items()}


def test_the_card_says_what_it_is(hub: Hub, checkpoint: Path) -> None:
    hub.repos["acme/base-7b"] = Repo(files={CARD: b"---\nlicense: apache-2.0\ntags: [x]\n---\n"})
    send(checkpoint, base="acme/base-7b")
    card = hub.repos[REPO].files[CARD]
    assert front_matter(card) == {
        "license": "apache-2.0",
        "base_model": "acme/base-7b",
        "base_model_relation": "quantized",
        "tags": ["whet", "w4a16", "awq"],
    }
    text = card.decode()
    for line in ("- scheme: W4A16", "- group\\_size: 128", "- writer: llm-compressor 0.14.0"):
        assert f"{line}\n" in text
    for line in ("- samples: 512", "- seed: 7", "- source: requests.jsonl"):
        assert f"{line}\n" in text


def test_texts_of_a_record_are_no_mark_up(hub: Hub, checkpoint: Path) -> None:
    text = "a|b`\n## c [x](javascript:y) <script>"
    record = json.loads((checkpoint / RECORD).read_text())
    record["quantized"] |= {"device": text, "writer": text}
    record["quantized"]["calibration"] |= {"source": text, "sha256": text}
    record["quantized"]["units"][0]["unit"] = f"layers.0.{text}"
    (checkpoint / RECORD).write_text(json.dumps(record))
    send(checkpoint, base="acme/a](b")
    card = hub.repos[REPO].files[CARD].decode().split(MARK)[1]
    assert not [
        mark for mark in ("\n## c", "[x](", "<script>", "a|b", "b`", "a](b") if mark in card
    ]


def test_a_local_source_gives_its_licence_and_not_its_path(
    hub: Hub, checkpoint: Path, tmp_path: Path
) -> None:
    source = tmp_path / "carols-model"
    source.mkdir()
    (source / CARD).write_text("---\nlicense: other\nlicense_name: acme-1\n---\n# Model\n")
    send(checkpoint, base=str(source))
    card = hub.repos[REPO].files[CARD]
    assert front_matter(card)["license"] == "other"
    assert front_matter(card)["license_name"] == "acme-1"
    assert "base_model" not in front_matter(card)
    assert b"carol" not in card


def test_an_unknown_base_costs_the_licence_only(hub: Hub, checkpoint: Path) -> None:
    send(checkpoint, base="acme/unknown")
    result = front_matter(hub.repos[REPO].files[CARD])
    assert result["base_model"] == "acme/unknown"
    assert "license" not in result


def test_a_second_push_sends_what_changed(hub: Hub, checkpoint: Path) -> None:
    send(checkpoint)
    stored = [call for call in hub.calls if call.startswith("PUT")]
    assert len(stored) == 2
    hub.calls.clear()
    send(checkpoint)
    assert not [call for call in hub.calls if call.startswith("PUT")]
    assert len(hub.repos[REPO].commits) == 1


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_persons_card_stays(where: str, hub: Hub, checkpoint: Path) -> None:
    card = b"# Mine\n"
    if where == "folder":
        (checkpoint / CARD).write_bytes(card)
    else:
        hub.repos[REPO] = Repo(files={CARD: card})
    heard = Heard()
    push(checkpoint, REPO, public=False, observer=heard)
    assert hub.repos[REPO].files[CARD] == card
    assert ("has a card of its own" in "".join(heard.notes)) == (where == "hub")


def test_a_card_of_ours_is_written_anew(hub: Hub, checkpoint: Path) -> None:
    hub.repos[REPO] = Repo(files={CARD: f"---\n---\n{MARK}\nolder\n".encode()})
    send(checkpoint)
    assert b"older" not in hub.repos[REPO].files[CARD]
    assert MARK.encode() in hub.repos[REPO].files[CARD]


def test_a_name_without_owner_is_the_users(hub: Hub, checkpoint: Path) -> None:
    assert send(checkpoint, "whetted") == f"{hub.url}/alice/whetted"


def test_what_was_to_be_private_is_not_published(hub: Hub, checkpoint: Path) -> None:
    hub.repos[REPO] = Repo(private=False)
    with pytest.raises(UsageError, match="exists already and is public; add --public"):
        send(checkpoint)
    assert hub.repos[REPO].commits == []
    assert hub.objects == {}


def test_weights_of_two_checkpoints_are_not_mixed(hub: Hub, checkpoint: Path) -> None:
    hub.repos[REPO] = Repo(files={"model.safetensors": b"16 bit"})
    with pytest.raises(UsageError, match=r"another checkpoint \(model\.safetensors\)"):
        send(checkpoint)
    assert hub.repos[REPO].files == {"model.safetensors": b"16 bit"}


def break_record(folder: Path) -> None:
    (folder / RECORD).write_text('{"files": {}}')


def flatten_record(folder: Path) -> None:
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({**record, "files": list(record["files"])}))


def remove_record(folder: Path) -> None:
    (folder / RECORD).unlink()


def lose_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("harm", [break_record, flatten_record, remove_record, lose_file])
def test_only_a_finished_checkpoint_is_pushed(
    harm: Callable[[Path], None], hub: Hub, checkpoint: Path
) -> None:
    harm(checkpoint)
    with pytest.raises(CheckpointError, match="is not a finished whet checkpoint"):
        send(checkpoint)
    assert hub.calls == []


def test_a_changed_file_is_not_pushed(hub: Hub, checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="or a file of it changed"):
        send(checkpoint)


@pytest.mark.parametrize("name", ["a/b/c", "two words", "-x", "owner/na--me", "owner/x.git", ""])
def test_a_name_that_cannot_be(name: str, hub: Hub, checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=r"the hub refused the upload to .*[Rr]epo"):
        send(checkpoint, name)
    assert hub.calls == []


def test_no_token(hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match="no token for the hub is set; run `hf auth login`"):
        send(checkpoint)


def test_a_wrong_token_is_told_before_any_work(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_wrong_wrong")
    with pytest.raises(UsageError, match=r"does not accept the token \(401\)") as caught:
        require_login(REPO)
    assert "hf_wrong" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_namespace_of_others(hub: Hub, checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=r"may not write to acme/x \(403\); use one with write"):
        send(checkpoint, "acme/x")


def test_a_token_that_may_only_read(hub: Hub, checkpoint: Path) -> None:
    hub.repos[REPO] = Repo()
    hub.writable.clear()
    with pytest.raises(UsageError, match=r"may not write to alice/whetted \(403\)"):
        send(checkpoint)


@pytest.mark.parametrize("part", ["/lfs/", "preupload"])
def test_a_failure_that_passes_is_tried_again(part: str, hub: Hub, checkpoint: Path) -> None:
    hub.faults[part] = [503]
    send(checkpoint)
    assert hub.faults[part] == []
    assert {name: hub.repos[REPO].files[name] for name in FILES} == FILES


def test_a_hub_that_keeps_failing(hub: Hub, checkpoint: Path) -> None:
    hub.faults["commit"] = [500] * 9
    with pytest.raises(
        WhetError, match=r"upload to alice/whetted failed \(.*500.* push again: what was uploaded"
    ) as up:
        send(checkpoint)
    assert up.value.exit_code == 1
    hub.faults.clear()
    send(checkpoint)
    assert {name: hub.repos[REPO].files[name] for name in FILES} == FILES


def test_metadata_that_the_hub_refuses(hub: Hub, checkpoint: Path) -> None:
    (checkpoint / CARD).write_text("---\nlicense: nonsense\n---\n")
    with pytest.raises(UsageError, match=r'refused the upload .* "license" must be one of'):
        send(checkpoint)


def test_no_hub_there(hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WhetError, match=r"upload to .* failed .* check the network"):
        send(checkpoint)


def test_uploads_by_the_newer_protocol_fail_in_words_too(
    hub: Hub, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in does not speak it: its refusal of the upload's own token is what is told."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.faults["xet-write-token"] = [403] * 9
    with pytest.raises(UsageError, match=r"may not write to alice/whetted \(403\)"):
        send(checkpoint)
    assert hub.repos[REPO].commits == []


def test_the_environment_alone_is_enough(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from whet.core.protocols import Silent;"
        "from whet.flow.quantize.publish import push;"
        f"print(push(Path({str(checkpoint)!r}), {REPO!r}, public=False, observer=Silent()))"
    )
    env = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path),
        "HF_HUB_DISABLE_XET": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{hub.url}/{REPO}\n"
    assert ran.stderr == ""
    assert {name: hub.repos[REPO].files[name] for name in FILES} == FILES
