"""``whet check`` and ``whet run`` on a hub id."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

from tests.checkpoint_factory import tiny_config, write_hollow, write_tiny_llama, write_tokenizer
from tests.cli.stage import Said, Whet, write_spec, write_whole_spec
from tests.cli.test_check_device import SEVEN_B
from tests.flow.stage import SHORT, FakeEngine
from tests.model_hub import Model, ModelHub, model_hub
from tests.scripted_server import scripted_server
from whet.core.errors import CheckpointError, InfeasibleError
from whet.core.units import GIB

NAME = "owner/name"
WEIGHTS = "model.safetensors"
H100 = ("--device", "H100 SXM", "--vllm", "0.26.0")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModelHub]:
    with model_hub(monkeypatch, tmp_path / "cache") as running:
        yield running


def big_model(hub: ModelHub, folder: Path, **change: Any) -> Model:
    """A 7B shape of 13.5 GB on the hub, and a spec of it."""
    write_hollow(folder / "big", tiny_config(write_tokenizer(folder / "big")) | SEVEN_B)
    hub.models[NAME] = Model(folder / "big")
    spec = {
        "model": {"target": NAME},
        "engine": {"args": {"max_model_len": 2048}},
        "workload": {**SHORT, "max_input_tokens": 1900, "max_output_tokens": 100},
        "recipes": {"awq": {"method": "awq"}},
        "variants": {"fp16": {}, "awq": {"weights": "awq"}},
    }
    write_spec(folder, **spec | change)
    return hub.models[NAME]


def test_a_check_fetches_headers_and_says_what_a_run_will_take(
    whet: Whet, hub: ModelHub, tmp_path: Path
) -> None:
    model = big_model(hub, tmp_path)
    weight_bytes = (tmp_path / "big" / WEIGHTS).stat().st_size
    said = whet("check", *H100, "-v")
    assert said.code == 0, said.err
    assert hub.sent_bytes < weight_bytes / 100
    assert f"{NAME} at {model.commit}: " in said.out
    assert "GiB to download" in said.out
    assert "of quantized copies), " in said.out
    assert f" --model {NAME} --revision {model.commit} " in said.out
    assert "snapshots" not in said.out
    assert "HF_HUB_OFFLINE" not in said.out.split("  awq")[0]
    assert not (tmp_path / "runs").exists()
    data = json.loads(whet("check", *H100, "--json").out)
    (source,) = data["models"]
    assert source["missing_bytes"] == source["weight_bytes"] == weight_bytes


def test_what_is_wrong_with_a_checkpoint_names_the_hub_id(
    whet: Whet, hub: ModelHub, tmp_path: Path
) -> None:
    big_model(hub, tmp_path)
    config = tmp_path / "big" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 40}))
    sentence = whet("check", *H100).sentence(CheckpointError.exit_code)
    assert sentence.startswith(f"{NAME}/config.json says 40 layers, but layer 32 has no tensors")


def test_a_model_without_a_chat_template(whet: Whet, hub: ModelHub, tmp_path: Path) -> None:
    big_model(hub, tmp_path)
    config = tmp_path / "big" / "tokenizer_config.json"
    words = json.loads(config.read_text())
    del words["chat_template"]
    config.write_text(json.dumps(words))
    assert whet("check", *H100).err.count("has no chat template") == 1


def test_a_model_without_a_tokenizer(whet: Whet, hub: ModelHub, tmp_path: Path) -> None:
    big_model(hub, tmp_path)
    (tmp_path / "big" / "tokenizer.json").unlink()
    sentence = whet("check", *H100).sentence(CheckpointError.exit_code)
    assert sentence.startswith(f"{NAME} has no tokenizer.json; ")


def test_a_disk_too_small_for_the_download_and_the_copies(
    whet: Whet,
    hub: ModelHub,
    tmp_path: Path,
    scripted: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """13.5 GB of weights and a copy of some 4 GB need more than 14 GiB."""
    big_model(hub, tmp_path)
    usage = shutil._ntuple_diskusage(100 * GIB, 86 * GIB, 14 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr("whet.predict.feasibility.plan_memory", lambda *_a, **_k: Roomy)
    said = whet("run")
    assert said.code == InfeasibleError.exit_code, said.err
    assert "of downloads, " in said.err
    assert "of quantized copies), 14 GiB free; free " in said.err
    assert hub.sent_bytes < 10**6
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


class Roomy:
    """A plan that fits: memory is not what this is about."""

    reason = None


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_typo_leaves_nothing_behind(
    whet: Whet, hub: ModelHub, scripted: FakeEngine, tmp_path: Path, command: str
) -> None:
    write_whole_spec(tmp_path, model={"target": "owner/nmae"})
    sentence = whet(command).sentence(CheckpointError.exit_code)
    assert "nor a model on the hub; correct the name" in sentence
    assert not (tmp_path / "runs" / "tiny" / "journal.jsonl").exists()


def run_on_hub(hub: ModelHub, folder: Path) -> Model:
    """A spec of a tiny model on the hub that the scripted engine runs."""
    hub.models[NAME] = Model(write_tiny_llama(folder / "on-hub"))
    write_whole_spec(folder, model={"target": NAME})
    return hub.models[NAME]


def test_a_run_downloads_once_and_pins_the_commit(
    whet: Whet, hub: ModelHub, scripted: FakeEngine, tmp_path: Path
) -> None:
    model = run_on_hub(hub, tmp_path)
    first = model.commit
    size = (tmp_path / "on-hub" / WEIGHTS).stat().st_size
    said = whet("run")
    assert said.code in (0, 9), said.err
    assert f"download {NAME} at {first}: " in " ".join(said.out.split())
    assert hub.sent[WEIGHTS] <= size + 101_000
    stored = json.loads((tmp_path / "runs/tiny/models/target.json").read_text())
    assert (stored["hub_id"], stored["commit"]) == (NAME, first)
    assert f"{NAME} at {first}" in (tmp_path / "runs/tiny/report.md").read_text()
    hub.sent.clear()
    model.commit = "f" * 40  # the hub has a newer commit; the run keeps its own
    assert whet("run", "--resume").code == said.code
    stored = json.loads((tmp_path / "runs/tiny/models/target.json").read_text())
    assert stored["commit"] == first
    assert hub.sent[WEIGHTS] == 0


def test_a_download_that_fails_leaves_no_run_and_the_next_one_works(
    whet: Whet,
    hub: ModelHub,
    scripted: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_on_hub(hub, tmp_path)
    hub.cut[WEIGHTS] = 0
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _seconds: None)  # the library's pauses
        sentence = whet("run").sentence(CheckpointError.exit_code)
    assert f"{NAME} at revision " in sentence
    assert not (tmp_path / "runs" / "tiny" / "journal.jsonl").exists()
    hub.cut.clear()
    assert whet("run").code in (0, 9)


def test_offline_with_and_without_the_cache(
    whet: Whet,
    hub: ModelHub,
    scripted: FakeEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_on_hub(hub, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    sentence = whet("check").sentence(CheckpointError.exit_code)
    assert sentence.endswith("HF_HUB_OFFLINE is set; unset it, or give a local folder")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert whet("run").code in (0, 9)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = whet("check")
    assert said.code == 0, said.err
    assert f"{NAME} at " in said.out
    assert "in the cache" in said.out


def test_the_spec_names_the_revision(whet: Whet, hub: ModelHub, tmp_path: Path) -> None:
    big_model(hub, tmp_path, model={"target": NAME, "revision": "v9"})
    sentence = whet("check", *H100).sentence(CheckpointError.exit_code)
    assert sentence == f"{NAME} has no revision 'v9'; correct model.revision"
    spec = yaml.safe_load((tmp_path / "whet.yaml").read_text())
    spec["model"]["revision"] = hub.models[NAME].commit
    (tmp_path / "whet.yaml").write_text(yaml.safe_dump(spec))
    assert whet("check", *H100).code == 0


SMALL_BENCH = ("--num-prompts", "4", "--num-warmups", "0", "--isl", "24", "--osl", "4")


def run_bench(whet: Whet) -> Said:
    with scripted_server() as server:
        return whet("bench", server.url, "--tokenizer", NAME, *SMALL_BENCH)


def run_prompts(whet: Whet) -> Said:
    row = json.dumps({"messages": [{"role": "user", "content": "Where is my order?"}]})
    Path("log.jsonl").write_text(f"{row}\n" * 4)
    return whet("prompts", "log.jsonl", "--model", NAME)


@pytest.mark.parametrize("command", [run_bench, run_prompts])
def test_a_tokenizer_is_fetched_without_the_weights(
    whet: Whet, hub: ModelHub, tmp_path: Path, command: Callable[[Whet], Said]
) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    folder = tmp_path / "on-hub"
    write_hollow(folder, tiny_config(write_tokenizer(folder)) | shape)
    hub.models[NAME] = Model(folder)
    said = command(whet)
    assert said.code == 0, said.err
    assert 0 < hub.sent_bytes < (folder / WEIGHTS).stat().st_size / 100
