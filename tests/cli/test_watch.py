"""``whet watch`` at the command line: bad input in one sentence, and a deployment that changes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.cli.stage import Whet
from tests.scripted_server import scripted_server
from whet.core.errors import EngineLostError, NothingQualifiesError, StorageError, UsageError
from whet.core.load import Load
from whet.core.run import Run
from whet.core.store import locked
from whet.watch.source import source_files, source_of_run
from whet.watch.state import Journal, WatchState

PUBLISHED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
USAGE = UsageError.exit_code
NOWHERE = ("--url", "http://127.0.0.1:9", "--listen", "off", "--period", "0.5")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(PUBLISHED) as tar:
        tar.extractall(tmp_path)  # our own archive; filters came with 3.11.4
    return tmp_path / "run"


def write_bundle(folder: Path, run: Path) -> Path:
    """The part of a bundle that the watch reads."""
    for name, text in source_files(source_of_run(Run.read(run), "draft+cache", Load.at(8))).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_state(folder: Path, run: Path) -> Path:
    """A watch that has seen the server before."""
    folder.mkdir()
    seen = WatchState(run=Run.read(run).name, variant="draft+cache", periods=1)
    Journal(folder).write_state(seen)
    return folder


def journal(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_a_folder_that_is_neither(whet: Whet, tmp_path: Path) -> None:
    said = whet("watch", tmp_path, *NOWHERE).sentence(USAGE)
    assert "is neither a run nor a bundle" in said


def test_a_run_without_a_recommendation(whet: Whet, run: Path) -> None:
    path = run / "decision.json"
    decision = json.loads(path.read_text())
    path.write_text(json.dumps(decision | {"recommendation": None}))
    assert "recommends nothing" in whet("watch", run, *NOWHERE).sentence(USAGE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "nowhere"), "--url"),
        ((*NOWHERE[:2], "--listen", "9464"), "--listen 9464 is not HOST:PORT"),
        ((*NOWHERE, "--periods", "0"), "--periods"),
        *(((*NOWHERE[:4], "--period", x), "--period") for x in ("inf", "nan", "1e10", "0", "-1")),
        ((*NOWHERE, "--engine-log", "none.log"), "--engine-log none.log is not a file"),
        ((), "--url"),
    ],
)
def test_bad_options(whet: Whet, run: Path, words: tuple[str, ...], said: str) -> None:
    assert said in whet("watch", run, *words).sentence(USAGE)


def test_a_damaged_bundle(whet: Whet, run: Path, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", run)
    (bundle / "watch" / "golden.json").write_text("{")
    said = whet("watch", bundle, *NOWHERE).sentence(StorageError.exit_code)
    assert "golden.json is damaged" in said


@pytest.mark.parametrize("name", ["envelope.json", "golden.json", "engine.json", "spec.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', "[]"])
def test_a_damaged_file_of_a_bundle(
    whet: Whet, run: Path, tmp_path: Path, name: str, text: str
) -> None:
    bundle = write_bundle(tmp_path / "bundle", run)
    (bundle / "watch" / name).write_text(text)
    whet("watch", bundle, *NOWHERE, "--periods", "1").sentence(StorageError.exit_code)


@pytest.mark.parametrize(
    ("count", "why"),
    [(16, "golden/ has none; a new run takes them or says why"), (0, "quality.golden_probes: 0")],
)
def test_a_bundle_without_probes_says_why(
    whet: Whet, run: Path, tmp_path: Path, count: int, why: str
) -> None:
    bundle = write_bundle(tmp_path / "bundle", run)
    (bundle / "watch" / "golden.json").unlink()
    path = bundle / "watch" / "spec.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps(spec | {"quality": spec["quality"] | {"golden_probes": count}}))
    said = whet("watch", bundle, *NOWHERE, "--state", tmp_path / "state", "--periods", "1")
    assert f"The run stored no golden probes ({why}" in said.out


def test_a_second_watch_on_one_state(whet: Whet, run: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "state"):
        said = whet("watch", run, *NOWHERE, "--state", tmp_path / "state")
    assert "state is in use by another whet" in said.sentence(StorageError.exit_code)


def test_a_standing_alarm_counts_at_every_start(whet: Whet, run: Path, tmp_path: Path) -> None:
    words = (*NOWHERE, "--state", write_state(tmp_path / "state", run), "--periods")
    for periods, standing in ((3, False), (1, True), (4, True)):
        said = whet("watch", run, *words, periods)
        assert said.code == NothingQualifiesError.exit_code
        assert ("standing for" in said.out) == standing
        assert said.err.count("unreachable") == 1
    lines = journal(tmp_path / "state")
    assert [line["cause"] for line in lines if line["kind"] == "alarm"] == ["unreachable"]


def test_an_alarm_that_cleared_no_longer_counts(whet: Whet, run: Path, tmp_path: Path) -> None:
    state = write_state(tmp_path / "state", run)
    words = ("--listen", "off", "--period", 0.5, "--state", state)
    said = whet("watch", run, "--url", "http://127.0.0.1:9", *words, "--periods", 3)
    with scripted_server(model="target", tokens_per_chunk=4) as server:
        said = whet("watch", run, "--url", server.url, *words, "--periods", 4)
    assert "standing for" in said.out
    assert "cleared: unreachable" in said.out
    assert "unreachable" not in said.err


def test_a_state_that_cannot_be_written_is_said(whet: Whet, run: Path, tmp_path: Path) -> None:
    state, bundle = tmp_path / "state", write_bundle(tmp_path / "bundle", run)
    (state / "state.json").mkdir(parents=True)
    (bundle / "watch" / "golden.json").unlink()
    path = bundle / "watch" / "envelope.json"
    fits = {"engine_version": "scripted", "series": []}
    path.write_text(json.dumps(json.loads(path.read_text()) | fits))
    with scripted_server(model="target") as server:
        words = ("--url", server.url, "--listen", "off", "--state", state, "--periods", 1)
        said = whet("watch", bundle, *words)
        assert "state.json" in said.sentence(StorageError.exit_code)
        assert "cannot write" in said.out
        said = whet("watch", run, *words[:-1], 4, "--period", 0.5)
    assert said.code == NothingQualifiesError.exit_code
    assert [f"in a row: {count}" in said.out for count in (1, 2, 3, 4)] == [True, True, False, True]


@pytest.mark.parametrize("periods", [(), ("--periods", 1)])
def test_a_url_that_never_answered_is_an_error_at_once(
    whet: Whet, run: Path, tmp_path: Path, periods: tuple[object, ...]
) -> None:
    said = whet("watch", run, *NOWHERE, "--state", tmp_path / "state", *map(str, periods))
    assert said.sentence(EngineLostError.exit_code) == (
        "no server answers at http://127.0.0.1:9; correct --url, or start the server first"
    )
    assert not (tmp_path / "state" / "journal.jsonl").exists()


@pytest.mark.parametrize("text", [None, "", "other:a_total 1\n"])
def test_metrics_that_are_not_there(
    whet: Whet, run: Path, tmp_path: Path, text: str | None
) -> None:
    with scripted_server(model="target", tokens_per_chunk=4, metrics=text is not None) as server:
        server.metrics_text = lambda: text or ""  # type: ignore[method-assign]
        words = ("--url", server.url, "--listen", "off", "--period", 0.5, "--periods", 3)
        said = whet("watch", run, *words, "--state", tmp_path / "state")
    assert said.code == NothingQualifiesError.exit_code
    assert "metrics_missing" in said.err


def test_an_engine_that_is_away_is_an_alarm_and_not_an_error(
    whet: Whet, run: Path, tmp_path: Path
) -> None:
    state = write_state(tmp_path / "state", run)
    said = whet("watch", run, *NOWHERE, "--periods", 3, "--state", state)
    assert said.code == NothingQualifiesError.exit_code
    assert "is not what was measured: unreachable" in said.err
    assert "unreachable: the engine does not answer" in " ".join(said.out.split())
    lines = journal(state)
    assert [line["cause"] for line in lines if line["kind"] == "alarm"] == ["unreachable"]
    assert not (state / "proposals").exists()


def test_a_bundle_and_its_run_are_watched_alike_and_the_watch_goes_on(
    whet: Whet, run: Path, tmp_path: Path
) -> None:
    bundle, state = write_bundle(tmp_path / "bundle", run), tmp_path / "state"
    with scripted_server(model="target", tokens_per_chunk=4) as server:
        words = ("--url", server.url, "--listen", "off", "--period", 0.5, "--periods", 3)
        for source in (run, bundle):
            said = whet("watch", source, *words, "--state", state)
            assert said.code in (0, NothingQualifiesError.exit_code), said.err
    starts = [line for line in journal(state) if line["kind"] == "stop"]
    assert [line["periods"] for line in starts] == [4, 7]  # a mismatch is looked at again at once
    causes = {line["cause"] for line in journal(state) if line["kind"] == "alarm"}
    assert "engine_version" in causes  # the scripted server is no vLLM 0.32
    assert (state / "proposals" / "engine_version.yaml").exists()


def test_what_the_learned_references_wait_for_is_said(
    whet: Whet, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.flow.watch.watch._LEARN_S", 0.0)
    with scripted_server(model="target", tokens_per_chunk=4) as server:
        words = ("--url", server.url, "--listen", "off", "--period", 0.5, "--periods", 1)
        said = whet("watch", run, *words, "--state", tmp_path / "state")
    assert "the learned references wait for" in said.out
    assert "of 10 answers to a fixed prompt" in " ".join(said.out.split())


def test_the_key_of_the_bundle_is_sent(whet: Whet, run: Path, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", run)
    words = ("--listen", "off", "--period", 0.5, "--periods", 4, "--state", tmp_path / "state")
    with scripted_server(model="target", key="k-of-the-bundle") as server:
        said = whet("watch", bundle, "--url", server.url, *words)
        assert "unauthorized" in said.err
        (bundle / ".env").write_text("HF_TOKEN=\nVLLM_API_KEY=k-of-the-bundle\n")
        said = whet("watch", bundle, "--url", server.url, *words)
    assert "unauthorized" not in said.err
    texts = [path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not any("k-of-the-bundle" in text for text in [*texts, said.out, said.err])
