"""Secrets of a spec: the engine's process gets them; no file and no output has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.stage import Said, Whet, write_spec, write_whole_spec
from tests.flow.stage import FakeEngine, install
from whet.core.errors import UsageError
from whet.core.records.engine import ResolvedEngine
from whet.core.spec import Spec
from whet.load import health

SECRETS = {
    "HF_TOKEN": "tok-plant0001",
    "MY_DB_PASS": "ab'plant0002\\x",
    "AWS_SECRET_ACCESS_KEY": "/plant0003+base64",
    "SOME_CREDENTIALS": "plant0004\nsecond line",
    "VLLM_API_KEY": "plant0005",
    "ODD": "https://bob:plant0006@gateway/v1",
    "SHORT_PWD": "p07",
}
PLAIN = {"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": "3", "VLLM_MAX_BATCHED_TOKENS_X": "77"}
PLANTED = ("plant000", "p07", "second line")
ENGINE: dict[str, Any] = {"name": "fake", "args": {"max_model_len": 512}}


def everything(folder: Path, said: Said) -> str:
    """All that a command wrote and printed."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    return said.out + said.err + "".join(path.read_text(errors="replace") for path in files)


def assert_hidden(folder: Path, said: Said) -> None:
    text = everything(folder, said)
    assert [word for word in PLANTED if word in text] == []


def engine_env(resolved: ResolvedEngine) -> dict[str, str]:
    return dict((*resolved.variant.env, *resolved.variant.secret_env))


class Recorder(FakeEngine):
    """Keeps what each server would be started with; a start may repeat a secret."""

    def unsupported(self, resolved: ResolvedEngine) -> str | None:
        seen = self.__dict__.setdefault("environments", {})
        seen[resolved.variant.name] = engine_env(resolved)
        return None


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    engine = Recorder()
    install(engine, monkeypatch)
    monkeypatch.setattr(health, "LATENESS_FLOOR_NS", 10 * 10**9)
    monkeypatch.setattr(health, "MAX_CPU_SHARE", 2.0)
    return engine


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.core.redact._spec_values", set())


def test_a_run_and_its_resume_leave_no_secret(
    whet: Whet, tmp_path: Path, recorder: Recorder
) -> None:
    path = write_whole_spec(
        tmp_path,
        engine=ENGINE | {"env": SECRETS | PLAIN},
        variants={"fp16": {}, "other": {"prefix_cache": True, "env": {"OWN_KEY": "plant0008"}}},
    )
    source = "# the old one was hf_plant0009plant\n" + path.read_text()
    path.write_text(source)
    recorder.refuses = {"other"}
    first = whet("run")
    runs = tmp_path / "runs"
    assert_hidden(runs, first)
    recorder.refuses = set()
    second = whet("run", "--resume")
    assert "other" in recorder.started[-2:], second.err
    assert_hidden(runs, second)
    seen = recorder.__dict__["environments"]
    assert seen["fp16"] == SECRETS | PLAIN
    assert seen["other"] == SECRETS | PLAIN | {"OWN_KEY": "plant0008"}

    copy = yaml.safe_load((runs / "tiny" / "spec.yaml").read_text())
    assert copy["engine"]["env"] == dict.fromkeys(SECRETS, "[redacted]") | PLAIN
    assert copy["variants"]["other"]["env"] == {"OWN_KEY": "[redacted]"}
    stored = json.loads((runs / "tiny" / "resolved_spec.json").read_text())
    assert stored["engine"]["env"] == copy["engine"]["env"]
    assert Spec.model_validate(stored).name == "tiny"
    variant = json.loads((runs / "tiny" / "variants" / "fp16.json").read_text())
    assert dict(variant["variant"]["env"]) == PLAIN


def test_another_value_resumes_and_another_plain_setting_does_not(
    whet: Whet, tmp_path: Path, recorder: Recorder
) -> None:
    env = {"HF_TOKEN": "plant0001", "VLLM_X": "1"}
    write_whole_spec(tmp_path, engine=ENGINE | {"env": env})
    whet("run")
    write_whole_spec(tmp_path, engine=ENGINE | {"env": env | {"HF_TOKEN": "plant0002"}})
    again = whet("run", "--resume")
    assert "differs" not in again.err
    assert_hidden(tmp_path / "runs", again)
    write_whole_spec(tmp_path, engine=ENGINE | {"env": env | {"VLLM_X": "2"}})
    assert "differs from the run's own in engine" in whet("run", "--resume").sentence(2)


def test_the_copy_of_a_spec_takes_its_secrets_from_the_environment(
    whet: Whet, tmp_path: Path, recorder: Recorder
) -> None:
    write_whole_spec(tmp_path, engine=ENGINE | {"env": {"HF_TOKEN": "[redacted]"} | PLAIN})
    whet("check")
    assert recorder.__dict__["environments"]["fp16"] == PLAIN


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {env: {MY_DB_PASS: 70017plant0001}, url: 'http://h?x=1'}", "engine.url"),
        ("engine: {env: {MY_DB_PASS: [plant0001]}}", "engine.env.MY_DB_PASS"),
        ("engine: {env: 'MY_DB_PASS=plant0001'}", "engine.env"),
        ("engine:\n  env:\n    MY_DB_PASS: *plant0001", "needs quotes"),
        ("engine:\n  env:\n    MY_DB_PASS: !plant0001 x", "not valid YAML"),
        ("engine: {url: 'http://bob:plant0001@h:1', name: openai}", "OPENAI_API_KEY"),
        ("engine: {url: 'http://bob:plant0001/x@h:1'}", "OPENAI_API_KEY"),
        ("engine: {url: 'ftp://h:1'}", "engine.url 'ftp://h:1' is not a server's URL"),
        ("engine: {args: {api_key: plant0001}}", "no place in a spec"),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_refused_spec_leaves_no_secret(
    whet: Whet, pair: Path, command: str, text: str, told: str
) -> None:
    path = write_spec(pair)
    data = yaml.safe_load(path.read_text())
    del data["engine"]
    path.write_text(f"{yaml.safe_dump(data)}{text}\n")
    said = whet(command)
    assert told in said.sentence(UsageError.exit_code)
    assert_hidden(pair / "runs", said)
