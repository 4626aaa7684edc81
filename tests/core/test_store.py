"""What survives a kill, a torn write and a full disk."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.older_run import forget_hashes
from whet.core.errors import StorageError, UsageError
from whet.core.outside import read_json
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.core.store import RunStore, write_atomic, write_json


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=None, high=None, samples=1)


def test_records_come_back_equal(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run") as store:
        store.put("cells", "a", estimate(1.5))
        store.put("cells", "b", estimate(2.5), status="failed")
    again = RunStore.read(tmp_path / "run")
    assert again.get("cells", "a", Estimate) == estimate(1.5)
    assert again.all("cells", Estimate) == [estimate(1.5), estimate(2.5)]
    assert again.done("cells", "a")
    assert not again.done("cells", "b"), "failed is not finished"
    assert not again.done("cells", "c")


def test_a_record_of_100_000_brackets_is_damaged(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("cells", "a", estimate(1))
        (tmp_path / "cells" / "a.json").write_text("[" * 100_000)
        with pytest.raises(StorageError, match="is damaged"):
            store.get("cells", "a", Estimate)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n")
    assert RunStore.read(tmp_path).done("cells", "a")


def test_a_filled_run_is_not_overwritten_unless_resumed(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("cells", "a", estimate(1))
    with pytest.raises(StorageError, match="--resume"), RunStore.open(tmp_path):
        pass
    with RunStore.open(tmp_path, resume=True) as store:
        assert store.done("cells", "a")


def test_a_run_in_use_is_refused(tmp_path: Path) -> None:
    with RunStore.open(tmp_path), pytest.raises(StorageError, match="in use"):
        RunStore.open(tmp_path, resume=True).__enter__()


@pytest.mark.parametrize(
    "torn", [b'{"kind": "cells", "key": "b", "sta', b"\x00\x00", b"[1]\n", b"{}\n"]
)
def test_a_torn_last_line_loses_only_itself(tmp_path: Path, torn: bytes) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("cells", "a", estimate(1))
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(torn)
    with RunStore.open(tmp_path, resume=True) as store:
        assert store.done("cells", "a")
        store.put("cells", "c", estimate(3))
    assert RunStore.read(tmp_path).done("cells", "c"), "the entry after a torn line is whole"


def test_kill_9_at_any_moment_loses_at_most_the_record_in_flight(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from whet.core.store import RunStore\n"
        "from whet.core.records.summary import Estimate\n"
        "with RunStore.open(Path(sys.argv[1])) as store:\n"
        "    for i in range(10**6):\n"
        "        store.put('cells', str(i), Estimate(value=i, low=None, high=None, samples=i))\n"
        "        print(i, flush=True)\n"
    )
    for attempt in range(3):
        root = tmp_path / str(attempt)
        child = subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(5 + attempt * 7)]
        time.sleep(0.003 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        said += child.stdout.readlines()
        child.wait()
        child.stdout.close()
        whole = [int(line) for line in said if line.endswith(b"\n")]
        with RunStore.open(root, resume=True) as store:
            for i in whole:
                assert store.get("cells", str(i), Estimate) is not None
            assert len(store.all("cells", Estimate)) - len(whole) in (0, 1)


def test_a_full_disk_is_one_sentence_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"old": True})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StorageError, match="full"):
            write_atomic(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert json.loads(path.read_text()) == {"old": True}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"], "no temporary file is left"


def test_a_key_cannot_leave_the_run_directory(tmp_path: Path) -> None:
    with (
        RunStore.open(tmp_path / "run") as store,
        pytest.raises(UsageError, match="leaves its folder"),
    ):
        store.put("cells", "../../x", estimate(1))


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no run"):
        RunStore.read(tmp_path)


def test_a_record_of_another_version_is_named(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("cells", "a", estimate(1))
        (tmp_path / "cells" / "a.json").write_text('{"value": 1}')
        with pytest.raises(StorageError, match="another version"):
            store.get("cells", "a", Estimate)


@contextmanager
def reading(fifo: Path) -> Iterator[list[bytes]]:
    """A FIFO with a reader; the list has what it read at the end."""
    os.mkfifo(fifo)
    texts: list[bytes] = []
    reader = threading.Thread(target=lambda: texts.append(fifo.read_bytes()))
    reader.start()
    yield texts
    reader.join(10)


def test_a_link_is_followed_and_its_target_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to("folder/target")
    for data in (b"one", b"two"):  # the target is not there yet, then it is
        write_atomic(link, data)
        assert link.is_symlink()
        assert target.read_bytes() == data
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    with reading(tmp_path / "fifo") as texts:
        write_atomic(tmp_path / "fifo", b"x" * 200_000)
    assert texts == [b"x" * 200_000]
    assert (tmp_path / "fifo").is_fifo()


def test_a_fifo_without_a_reader_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.core.store._FIFO_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StorageError, match="nothing reads the FIFO"):
        write_atomic(tmp_path / "fifo", b"x")


def test_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (Path("/dev/null"), tmp_path / "null"):
        write_atomic(path, b"x")
        assert path.is_char_device()
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="is full"):
        write_atomic(tmp_path / "full", b"x")


@pytest.mark.parametrize("out", ["/dev/stdout", "/proc/self/fd/1", "link"])
def test_standard_output_is_written_in_order(tmp_path: Path, out: str) -> None:
    (tmp_path / "link").symlink_to("/dev/stdout")
    script = (
        "import sys; from pathlib import Path\n"
        "from whet.core.store import write_atomic\n"
        "print('before'); write_atomic(Path(sys.argv[1]), b'data\\n'); print('after')\n"
    )
    words = [sys.executable, "-c", script, out]
    piped = subprocess.run(words, stdout=subprocess.PIPE, cwd=tmp_path, check=True)
    with (tmp_path / "file").open("wb") as file:
        subprocess.run(words, stdout=file, cwd=tmp_path, check=True)
    assert piped.stdout == (tmp_path / "file").read_bytes() == b"before\ndata\nafter\n"


def test_a_loop_of_links_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    for name in ("loop", "folder"):
        with pytest.raises(StorageError, match="cannot write"):
            write_atomic(tmp_path / name, b"x")
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "NaN", "[1e999]", "", "{", "\xff"]
)
def test_json_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r".+"):
        read_json(tmp_path / "file")


def test_json_is_not_read_from_a_device_or_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/zero"), tmp_path / "fifo"):
        with pytest.raises(ValueError, match="not a regular file"):
            read_json(path)


def test_a_number_that_is_not_finite_is_damage(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("cells", "a", estimate(1))
        path = tmp_path / "cells" / "a.json"
        path.write_text(path.read_text().replace("1.0", "NaN"))
        with pytest.raises(StorageError, match=r"a\.json is damaged"):
            store.get("cells", "a", Estimate)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [make_folder, make_loop, os.mkfifo])
def test_a_journal_or_record_that_is_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("cells", "a", estimate(1))
        store.note("decision", "decision", status="complete")
    for name in ("cells/a.json", "decision.json"):
        (tmp_path / name).unlink(missing_ok=True)
        make(tmp_path / name)
    run = Run.read(tmp_path)
    with pytest.raises(StorageError, match=r"a\.json is damaged"):
        run.store.get("cells", "a", Estimate)
    with pytest.raises(StorageError, match=r"decision\.json is damaged"):
        print(run.decision)
    (tmp_path / "journal.jsonl").unlink()
    make(tmp_path / "journal.jsonl")
    with pytest.raises(StorageError, match=r"cannot read .*journal\.jsonl"):
        RunStore.read(tmp_path)


def test_a_lock_that_is_a_fifo_or_a_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with RunStore.open(tmp_path), pytest.raises(StorageError, match="in use"):
        RunStore.open(tmp_path).__enter__()
    (tmp_path / ".lock").unlink()
    (tmp_path / "notes").write_text("precious")
    (tmp_path / ".lock").symlink_to("notes")
    with RunStore.open(tmp_path):
        pass
    assert (tmp_path / "notes").read_text() == "precious"


@pytest.mark.parametrize("kind", ["trials", "quality"])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_journal_that_lost_measurements_is_not_resumed(
    tmp_path: Path, kind: str, kept: int
) -> None:
    with RunStore.open(tmp_path) as store:
        for key in "abc":
            store.put(kind, key, estimate(1))
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:kept]))
    said = f"lacks {3 - kept} of 3 stored records"
    with pytest.raises(StorageError, match=said):
        RunStore.open(tmp_path, resume=True).__enter__()
    if not kept:
        with pytest.raises(StorageError, match=said):
            RunStore.read(tmp_path)
    journal.write_text("".join(lines[:2]))  # a kill between the record and its line
    with RunStore.open(tmp_path, resume=True) as store:
        assert not store.done(kind, "c")


def test_a_run_that_is_moved_is_not_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with RunStore.open(root) as store:
        store.put("cells", "a", estimate(1))
        root.rename(tmp_path / "moved")
        with pytest.raises(StorageError, match="was moved or removed"):
            store.put("cells", "b", estimate(1))
        assert not root.exists()
        (tmp_path / "moved").rename(root)
        store.put("cells", "b", estimate(1))
    assert store.get("cells", "a", Estimate) == estimate(1), "a closed run is still read"


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("kind", ["trials", "cells", "quality", "verdicts", "decision"])
@pytest.mark.parametrize("edit", [("1.5", "15.0"), ("\n}", "\n }"), ("1.5", "1.50")])
def test_a_record_that_was_edited_is_named(
    tmp_path: Path, kind: str, edit: tuple[str, str]
) -> None:
    with RunStore.open(tmp_path) as store:
        store.put(kind, "a", estimate(1.5))
    path = tmp_path / ("decision.json" if kind == "decision" else f"{kind}/a.json")
    rewrite(path, *edit)
    told = rf"{path.name} was changed after whet had written it; put it back from a copy"
    with pytest.raises(StorageError, match=told):
        RunStore.read(tmp_path).all(kind, Estimate)
    with (
        RunStore.open(tmp_path, resume=True) as store,
        pytest.raises(StorageError, match=told),
    ):
        store.get(kind, "a", Estimate)


def test_a_record_in_the_place_of_another_is_named(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("trials", "a", estimate(1))
        store.put("trials", "b", estimate(2))
    (tmp_path / "trials" / "b.json").write_bytes((tmp_path / "trials" / "a.json").read_bytes())
    with pytest.raises(StorageError, match=r"b\.json was changed"):
        RunStore.read(tmp_path).all("trials", Estimate)


def test_a_trial_that_was_removed_is_named(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("trials", "a", estimate(1))
        store.note("quality", "a", status="failed", reason="no answer")
    (tmp_path / "trials" / "a.json").unlink()
    again = RunStore.read(tmp_path)
    with pytest.raises(StorageError, match=r"a\.json is missing"):
        again.get("trials", "a", Estimate)
    assert again.get("quality", "a", Estimate) is None, "a failure has no record"


def test_a_run_of_an_older_version_is_read_unchecked(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        store.put("trials", "a", estimate(1.5))
    forget_hashes(tmp_path)
    rewrite(tmp_path / "trials" / "a.json", "1.5", "2.5")
    assert RunStore.read(tmp_path).get("trials", "a", Estimate) == estimate(2.5)


@pytest.mark.parametrize("at", ["before the record", "before its line"])
def test_a_kill_while_a_record_is_replaced_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def killed(path: Path, data: bytes) -> None:
        if at == "before its line":
            write_atomic(path, data)
        raise KeyboardInterrupt

    with RunStore.open(tmp_path) as store:
        store.put("trials", "a", estimate(1), status="failed")
        monkeypatch.setattr("whet.core.store.write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            store.put("trials", "a", estimate(2))
    monkeypatch.undo()
    with RunStore.open(tmp_path, resume=True) as store:
        assert not store.done("trials", "a")
        stored = store.get("trials", "a", Estimate)
        assert stored == estimate(2 if at == "before its line" else 1)
        store.put("trials", "a", estimate(3))
    rewrite(tmp_path / "trials" / "a.json", "3", "4")
    with pytest.raises(StorageError, match="was changed"):
        RunStore.read(tmp_path).get("trials", "a", Estimate)


def test_a_record_that_is_replaced_on_purpose_is_read(tmp_path: Path) -> None:
    with RunStore.open(tmp_path) as store:
        for value in (1, 2, 2):
            store.put("cells", "a", estimate(value))
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 4
    assert RunStore.read(tmp_path).get("cells", "a", Estimate) == estimate(2)
