"""What survives a kill, a torn write and a full disk."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whet.core.errors import StorageError, UsageError
from whet.core.records import Estimate
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
        "from whet.core.records import Estimate\n"
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
