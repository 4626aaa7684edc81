"""Build llama.cpp's server and quantizer once: ``python scripts/build_llamacpp.py``.

The source is the one that the package llama-cpp-python carries, so it comes from the package index
as all else does. Needs CMake and a C++ compiler, and takes about seven minutes on two cores. The
programs and the converter go to ~/.cache/whet/llama.cpp/bin, where whet looks for the server.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from whet.core.cache import cache_folder

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
CACHE = cache_folder() / "llama.cpp"
PROGRAMS = ("llama-server", "llama-quantize")
CONVERTER = "convert_hf_to_gguf.py"
CONVERTER_FOLDERS = ("conversion", "gguf-py")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_CURL=OFF",
    f"-DLLAMA_BUILD_COMMIT=python{VERSION.replace('.', '_')}",
)


def source(given: Path | None, scratch: Path) -> Path:
    """The folder of llama.cpp, unpacked from the sdist that was given or is downloaded."""
    if given is None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE]
        command += ["-d", str(scratch), f"{PACKAGE}=={VERSION}"]
        subprocess.run(command, check=True)
        given = next(scratch.glob("*.tar.gz"))
    with tarfile.open(given) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        archive.extractall(scratch)
    return next(scratch.glob("*/vendor/llama.cpp"))


def main() -> int:
    """Build, and copy the programs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdist", type=Path, help=f"{PACKAGE}'s sdist; default: downloaded")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    for tool in ("cmake", "c++"):
        if shutil.which(tool) is None:
            sys.exit(f"build_llamacpp: {tool} is not on PATH; install CMake and a C++ compiler")
    scratch = CACHE / "build"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    folder = source(options.sdist, scratch)
    made = scratch / "out"
    subprocess.run(["cmake", "-S", folder, "-B", made, *OPTIONS], check=True)
    jobs = ["--parallel", str(options.jobs)]
    subprocess.run(["cmake", "--build", made, *jobs, "--target", *PROGRAMS], check=True)
    (CACHE / "bin").mkdir(exist_ok=True)
    for name in PROGRAMS:
        shutil.copy2(made / "bin" / name, CACHE / "bin" / name)
    shutil.copy2(folder / CONVERTER, CACHE / "bin" / CONVERTER)
    for name in CONVERTER_FOLDERS:
        shutil.copytree(folder / name, CACHE / "bin" / name, dirs_exist_ok=True)
    shutil.rmtree(scratch)
    print(f"built: {', '.join(str(CACHE / 'bin' / name) for name in PROGRAMS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
