"""Install the pinned, hashed locks. Standard library only: it runs before all else.

    python scripts/setup_env.py run     .venv: what `whet` and the CPU engine need
    python scripts/setup_env.py dev     .venv: the same, and what the tests and checks need
    python scripts/setup_env.py docs    .venv-docs: what builds the site, 130 MB

A second call with the same locks does nothing. Called by the Makefile, with Python 3.11 to 3.13.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
LOCKS = {
    "run": ["requirements/torch.txt", "requirements/run.txt"],
    "dev": ["requirements/torch.txt", "requirements/run.txt", "requirements/dev.txt"],
    "docs": ["requirements/docs.txt"],
}
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_INSTALL = [
    *("-m", "pip", "--disable-pip-version-check", "--no-input", "install"),
    *("-qq", "--no-deps", "--no-compile"),
]
# --no-deps: the lock is complete, and what it leaves out (requirements/left-out.txt) stays out.
FROM_LOCK = [*PIP_INSTALL, "--require-hashes", "--only-binary", ":all:"]
# Byte code is written once here, on every core: vLLM starts three processes that import it all, and
# many machines set PYTHONDONTWRITEBYTECODE. Model families that nothing here loads are left out.
NOT_COMPILED = r"/tests?/|/torch/testing/|/transformers/models/(?!auto/|llama/|__init__)"
VERIFY = """
import importlib.metadata as metadata
import torch
if torch.version.cuda is not None:
    raise SystemExit(f"torch {torch.__version__} is a CUDA build; the lock pins a CPU build")
present = [n for n in ("torchvision", "torchaudio", "torchcodec")
           if any(metadata.distributions(name=n))]
if present:
    raise SystemExit(f"{', '.join(present)} break transformers beside a CPU torch: `make clean`")
import compressed_tensors, transformers, vllm, whet
print(f"setup: whet {whet.__version__}, vLLM {vllm.__version__}, torch {torch.__version__}")
"""


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do about it."""


def environment(level: str) -> Path:
    return ROOT / ".venv-docs" if level == "docs" else VENV


def fingerprint(level: str) -> str:
    digest = hashlib.sha256(VERSION.encode())
    for name in [*LOCKS[level], "pyproject.toml", "scripts/setup_env.py"]:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_current(level: str) -> bool:
    # The dev environment holds everything the run environment does.
    for made in ("dev", level):
        stamp = environment(level) / f".whet-{made}"
        if stamp.is_file() and stamp.read_text() == fingerprint(made):
            return True
    return False


def create(folder: Path) -> None:
    """Make an environment of this Python with pip in it, unless there is one."""
    if (folder / "bin" / "python").exists():
        if not (folder / "lib" / VERSION).is_dir():
            raise SetupError(
                f"{folder.name} is of another Python than {VERSION}; `make clean` removes it"
            )
        return
    shutil.rmtree(folder, ignore_errors=True)  # of a Python that is gone
    if importlib.util.find_spec("ensurepip"):
        venv.create(folder, with_pip=True, symlinks=True)
    elif shutil.which("uv"):
        run(["uv", "venv", "--quiet", "--seed", "-p", sys.executable, str(folder)], folder.name)
    else:
        raise SetupError(
            f"{sys.executable} cannot put pip into an environment; install {VERSION}-venv (Debian, "
            "Ubuntu), or uv"
        )


def run(command: list[str], what: str) -> None:
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise SetupError(f"could not install {what}; the reason is above")


def install_torch(python: str) -> None:
    """From the index that pip is set up with, if it has the pinned build, else from PyTorch's own.

    Either way the file's hash decides; TORCH_INDEX names a mirror.
    """
    wanted = [python, *FROM_LOCK, "-r", "requirements/torch.txt"]
    index = os.environ.get("TORCH_INDEX")
    if not index:
        first = subprocess.run(
            wanted, check=False, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True
        )
        if first.returncode == 0:
            return
    index = index or TORCH_INDEX
    run([*wanted, "--index-url", index], f"torch from {index} (TORCH_INDEX=… names a mirror of it)")


def compile_bytecode(python: str, folder: Path) -> None:
    command = [python, "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, str(folder / "lib")]
    # It reports files written for a newer Python, which nothing imports: no failure of ours.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make(level: str) -> None:
    folder = environment(level)
    create(folder)
    python = str(folder / "bin" / "python")
    for stamp in folder.glob(".whet-*"):
        stamp.unlink()
    wait = "" if level == "docs" else " (about two minutes)"
    print(f"setup: installing the {level} lock into {folder.name}, {VERSION}{wait}", flush=True)
    for lock in LOCKS[level]:
        if lock == "requirements/torch.txt":
            install_torch(python)
        else:
            run([python, *FROM_LOCK, "-r", lock], lock)
    if level != "docs":
        run([python, *PIP_INSTALL, "--no-build-isolation", "--editable", "."], "whet itself")
        compile_bytecode(python, folder)
        if subprocess.run([python, "-c", VERIFY], cwd=ROOT, check=False).returncode != 0:
            raise SetupError("the environment is not sound; the reason is above")
    (folder / f".whet-{level}").write_text(fingerprint(level))


def main() -> int:
    level = sys.argv[1] if len(sys.argv) == 2 else ""
    if level not in LOCKS:
        print(__doc__, file=sys.stderr)
        return 2
    if is_current(level):
        return 0
    started_s = time.monotonic()
    try:
        make(level)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    print(f"setup: done in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
