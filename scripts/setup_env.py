"""Make .venv from the pinned, hashed locks. Standard library only: it runs before all else.

    python scripts/setup_env.py run     what `whet` and the CPU engine need
    python scripts/setup_env.py dev     the same, and what the tests and checks need

A second call with the same locks does nothing. Called by the Makefile.
"""

import hashlib
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCKS = {
    "run": ["requirements/torch.txt", "requirements/run.txt"],
    "dev": ["requirements/torch.txt", "requirements/run.txt", "requirements/dev.txt"],
}
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_INSTALL = [
    *(str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"),
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


def fingerprint(level: str) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in [*LOCKS[level], "pyproject.toml", "scripts/setup_env.py"]:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_current(level: str) -> bool:
    # The dev environment holds everything the run environment does.
    for made in ("dev", level):
        stamp = VENV / f".whet-{made}"
        if stamp.is_file() and stamp.read_text() == fingerprint(made):
            return True
    return False


def pip(command: list[str], what: str) -> None:
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise SetupError(f"could not install {what}; pip's own message is above")


def install_torch() -> None:
    """From the index that pip is set up with, if it has the pinned build, else from PyTorch's own.

    Either way the file's hash decides; TORCH_INDEX names a mirror.
    """
    wanted = ["-r", "requirements/torch.txt"]
    index = os.environ.get("TORCH_INDEX")
    if not index:
        first = subprocess.run(
            [*FROM_LOCK, *wanted],
            check=False,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if first.returncode == 0:
            return
    command = [*FROM_LOCK, "--index-url", index or TORCH_INDEX, *wanted]
    pip(command, f"torch from {index or TORCH_INDEX} (TORCH_INDEX=… names a mirror of it)")


def compile_bytecode() -> None:
    library = VENV / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    command = [str(PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, str(library)]
    # It reports files written for a newer Python, which nothing imports: no failure of ours.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make(level: str) -> None:
    if sys.version_info[:2] != (3, 11):
        raise SetupError(
            f"the lock is for Python 3.11 and this is {sys.version.split()[0]}; "
            "name one with `make PYTHON=/path/to/python3.11`"
        )
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    for stamp in VENV.glob(".whet-*"):
        stamp.unlink()
    print(f"setup: installing the {level} lock into .venv (about three minutes)", flush=True)
    install_torch()
    for lock in LOCKS[level][1:]:
        pip([*FROM_LOCK, "-r", lock], lock)
    pip([*PIP_INSTALL, "--no-build-isolation", "--editable", "."], "whet itself")
    compile_bytecode()
    if subprocess.run([str(PYTHON), "-c", VERIFY], cwd=ROOT, check=False).returncode != 0:
        raise SetupError("the environment is not sound; the reason is above")
    (VENV / f".whet-{level}").write_text(fingerprint(level))


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
