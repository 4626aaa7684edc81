"""The set-up: its choice of a Python, what it says where it cannot go on, one lock for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import lock, setup_env

ROOT = Path(__file__).resolve().parents[2]


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def write_python(path: Path, minor: int) -> Path:
    """This Python under another version, and with its own path as `sys.executable`."""
    code = (
        f"import sys; sys.version_info = (3, {minor}); sys.executable = '{path}'; exec(sys.argv[1])"
    )
    return write_program(path, f'exec {sys.executable} -c "{code}" "$2"')


def choose(clone: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """scripts/python.sh in a clone whose PATH is the clone's bin/ and nothing else."""
    (clone / "scripts").mkdir(exist_ok=True)
    (clone / "bin").mkdir(exist_ok=True)
    script = shutil.copy(ROOT / "scripts" / "python.sh", clone / "scripts")
    return subprocess.run(
        ["/bin/sh", script],
        cwd=clone,
        env={"PATH": str(clone / "bin"), **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({"python3": 13, "python3.11": 11}, "python3"),
        ({"python3": 14, "python3.12": 12, "python3.11": 11}, "python3.12"),
        ({"python3": 10, "python3.11": 11}, "python3.11"),
        ({"python3": 9, "python3.13": 13, "python3.12": 12}, "python3.13"),
    ],
)
def test_the_first_python_in_range_is_taken(
    tmp_path: Path, there: dict[str, int], chosen: str
) -> None:
    for name, minor in there.items():
        write_python(tmp_path / "bin" / name, minor)
    done = choose(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'bin' / chosen}\n"), done.stderr


def test_a_named_python_comes_first_and_nothing_stands_in_for_it(tmp_path: Path) -> None:
    write_python(tmp_path / "bin" / "python3", 12)
    named = write_python(tmp_path / "own python" / "python", 13)
    assert choose(tmp_path, PYTHON=str(named)).stdout == f"{named}\n"
    old = write_python(tmp_path / "bin" / "old", 10)
    done = choose(tmp_path, PYTHON=str(old))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"setup: PYTHON={old} is not Python 3.11 to 3.13; name another one\n"


def test_a_second_call_stays_with_the_python_of_the_environment(tmp_path: Path) -> None:
    write_python(tmp_path / "bin" / "python3", 13)
    own = write_python(tmp_path / ".venv" / "bin" / "python", 11)
    assert choose(tmp_path).stdout == f"{own}\n"


def test_uv_brings_a_python_where_none_is_in_range(tmp_path: Path) -> None:
    write_python(tmp_path / "bin" / "python3", 9)
    uv = write_program(tmp_path / "bin" / "uv", 'echo "$@" >> calls; [ "$2" = install ] || echo /x')
    assert choose(tmp_path).stdout == "/x\n"
    assert "python install 3.12" in (tmp_path / "calls").read_text()
    uv.unlink()
    done = choose(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("setup: no Python 3.11 to 3.13 on the PATH; install one, or uv")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def without_ensurepip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of one folder, for a Python as Debian has it without python3-venv."""
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_a_python_without_pip_asks_for_it(without_ensurepip: Path) -> None:
    with pytest.raises(setup_env.SetupError, match=r"install python3\.\d+-venv .*, or uv$"):
        setup_env.create(without_ensurepip / ".venv")


def test_uv_makes_the_environment_of_a_python_without_pip(without_ensurepip: Path) -> None:
    calls = without_ensurepip / "calls"
    write_program(without_ensurepip / "bin" / "uv", f'echo "$@" > {calls}')
    setup_env.create(without_ensurepip / ".venv")
    words = calls.read_text().split()
    assert words[0] == "venv"
    assert {"--seed", sys.executable, str(without_ensurepip / ".venv")} <= {*words}


def test_an_environment_of_another_python_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    write_program(tmp_path / ".venv" / "bin" / "python", "")
    (tmp_path / ".venv" / "lib" / "python3.9").mkdir(parents=True)
    with pytest.raises(setup_env.SetupError, match=r"another Python .*; `make clean` removes it"):
        setup_env.create(tmp_path / ".venv")


def test_one_lock_says_which_python_needs_what() -> None:
    old, new = (
        "a==1 \\\n    --hash=x\nb==1 \\\n    --hash=y",
        "a==1 \\\n    --hash=x\nb==2 \\\n    --hash=z",
    )
    merged = lock.merge({"3.11": old, "3.12": new, "3.13": new})
    assert merged.removeprefix(lock.HEADER) == (
        "a==1 \\\n    --hash=x\n"
        "b==1 ; python_version == '3.11' \\\n    --hash=y\n"
        "b==2 ; python_version == '3.12' or python_version == '3.13' \\\n    --hash=z\n"
    )


def test_watch_demo_says_what_is_missing_before_it_sets_anything_up(tmp_path: Path) -> None:
    """`make` itself, with a PATH that has neither program."""
    make, sh = shutil.which("make"), shutil.which("sh")
    if make is None or sh is None:
        pytest.skip("no make on this machine")
    done = subprocess.run(
        [make, "-s", "-C", str(ROOT), "watch-demo"],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    line, *rest = done.stderr.splitlines()
    assert line == (
        "watch-demo: Prometheus and Alertmanager are needed: "
        "apt-get install prometheus prometheus-alertmanager"
    )
    assert all(text.startswith("make") for text in rest), rest
