"""Make the locks again: requirements/run.txt and requirements/dev.txt, every file with its hash.

Run it with `make lock` after changing pyproject.toml or requirements/engine.in.
It needs uv (`pip install uv`), and a place that offers the pinned CPU build of torch as links:
PyTorch's own page (the default) or a folder of wheels. Packages come from the default index.

requirements/torch.txt is kept by hand: one version, and one hash for each platform's wheel.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
TORCH_LINKS = "https://download.pytorch.org/whl/cpu/torch/"
HEADER = "# Made by scripts/lock.py from pyproject.toml and requirements/engine.in. Do not edit.\n"


def compile_lock(target: Path, *, extra: list[str], torch_links: str, upgrade: bool) -> None:
    """Resolve and write one lock; what uv found already pinned in `target` stays where it can."""
    command = ["uv", "pip", "compile", "pyproject.toml", "requirements/engine.in"]
    command += ["--override", "requirements/left-out.txt", "--find-links", torch_links]
    command += ["--python-version", "3.11", "--generate-hashes", "--only-binary", ":all:"]
    command += ["--no-emit-find-links", "--no-emit-index-url", "--no-header", "--quiet"]
    command += ["--no-emit-package", "torch", "-o", str(target.relative_to(ROOT)), *extra]
    if upgrade:
        command.append("--upgrade")
    # A machine's own uv settings must not reach a file that every machine reads.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    pins = target.read_text().split("\n# The following packages", 1)[0]
    target.write_text(HEADER + pins.rstrip() + "\n")


def pinned(lock: Path) -> list[str]:
    return re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-links", default=TORCH_LINKS)
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    options = parser.parse_args()
    if shutil.which("uv") is None:
        sys.exit("lock: uv is not on the PATH; `pip install uv` brings it")

    run, dev = REQUIREMENTS / "run.txt", REQUIREMENTS / "dev.txt"
    shared = {"torch_links": options.torch_links, "upgrade": options.upgrade}
    compile_lock(run, extra=[], **shared)
    # dev.txt adds to run.txt and repeats nothing of it, so the two can never disagree.
    already = [part for name in pinned(run) for part in ("--no-emit-package", name)]
    compile_lock(dev, extra=["--extra", "dev", "-c", "requirements/run.txt", *already], **shared)
    print(f"lock: {len(pinned(run))} packages to run, {len(pinned(dev))} more to develop")
    return 0


if __name__ == "__main__":
    sys.exit(main())
