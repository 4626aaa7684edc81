"""Make the locks in requirements/ again: run.txt, dev.txt and docs.txt, every file with its hash.

Run it with `make lock` after changing pyproject.toml or requirements/engine.in.
It needs uv (`pip install uv`), and a place that offers the pinned CPU build of torch as links:
PyTorch's own page (the default) or a folder of wheels. Packages come from the default index.

Each lock is resolved for every Python, because the metadata of one version's wheels differs between
platforms, and written as one: a marker stands where not every Python needs a package.
requirements/torch.txt is written by hand: one version, a hash for each Python and architecture.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13")
TORCH_LINKS = "https://download.pytorch.org/whl/cpu/torch/"
HEADER = "# Made by scripts/lock.py from pyproject.toml and requirements/engine.in. Do not edit.\n"
WHOLE = ["pyproject.toml", "requirements/engine.in"]


def resolve(lock: Path, python: str, sources: list[str], options: argparse.Namespace) -> str:
    """Resolve for one Python; what is pinned in `lock` already stays where it can."""
    command = ["uv", "pip", "compile", *sources, "-o", str(lock), "--python-version", python]
    command += ["--override", "requirements/left-out.txt", "--find-links", options.torch_links]
    command += ["--generate-hashes", "--only-binary", ":all:", "--no-emit-package", "torch"]
    command += ["--no-emit-find-links", "--no-emit-index-url", "--no-header", "--quiet"]
    if options.upgrade:
        command.append("--upgrade")
    # A machine's own uv settings must not reach a file that every machine reads.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return lock.read_text().split("\n# The following packages", 1)[0].rstrip()


def merge(locks: dict[str, str]) -> str:
    """Return one lock for several Pythons, from the lock of each."""
    hashes, needs = dict[str, str](), dict[str, list[str]]()
    for python, lock in locks.items():
        for entry in re.split(r"\n(?=\S)", lock):
            pin, rest = entry.split(" ", 1)
            hashes.setdefault(pin, rest)
            needs.setdefault(pin, []).append(python)
    merged = HEADER
    for pin in sorted(hashes, key=lambda pin: pin.split("==")):
        named = " or ".join(f"python_version == '{python}'" for python in needs[pin])
        marker = "" if len(needs[pin]) == len(locks) else f"; {named} "
        merged += f"{pin} {marker}{hashes[pin]}\n"
    return merged


def write_lock(
    name: str, sources: dict[str, list[str]], options: argparse.Namespace
) -> dict[str, str]:
    """Write requirements/NAME.txt from the sources for each Python; return the lock of each."""
    target, locks = REQUIREMENTS / name, dict[str, str]()
    with TemporaryDirectory() as folder:
        for python in PYTHONS:
            lock = Path(folder) / f"{python}.txt"
            if target.exists():
                shutil.copy(target, lock)
            locks[python] = resolve(lock, python, sources[python], options)
    target.write_text(merge(locks))
    print(f"lock: {len(pinned(target.read_text()))} packages in requirements/{name}")
    return locks


def pinned(lock: str) -> list[str]:
    return re.findall(r"^([A-Za-z0-9._-]+)==", lock, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-links", default=TORCH_LINKS)
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    options = parser.parse_args()
    if shutil.which("uv") is None:
        sys.exit("lock: uv is not on the PATH; `pip install uv` brings it")

    run = write_lock("run.txt", dict.fromkeys(PYTHONS, WHOLE), options)
    # dev.txt adds to run.txt and repeats nothing of it, so the two can never disagree; docs.txt is
    # part of both.
    more = [*WHOLE, "--extra", "dev", "--group", "docs", "-c", "requirements/run.txt"]
    dev = {
        python: more + [part for name in pinned(lock) for part in ("--no-emit-package", name)]
        for python, lock in run.items()
    }
    write_lock("dev.txt", dev, options)
    docs = ["--group", "docs", "-c", "requirements/run.txt", "-c", "requirements/dev.txt"]
    write_lock("docs.txt", dict.fromkeys(PYTHONS, docs), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
