"""One quantizer run in a process of its own: the job it gets, what it reports, how it is watched.

Every tool gets a fresh process on the same machine, with the same JSON and timed by the same
clock from outside, so that neither pays for what the other has loaded or left allocated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from whet.core.units import NS_PER_S

ROOT: Final = Path(__file__).resolve().parent.parent
_PEER_SCRIPT: Final = ROOT / "benchmarks" / "quantizer_llm_compressor.py"
_SAMPLE_S: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What one process is to make.

    ``calibration`` is the text, for a tool that reads text; ``ids`` a JSON file of the same
    samples as token ids, for one that does not. ``dtype`` is what the peer computes in, ``ignore``
    what it leaves in 16 bits.
    """

    source: str
    out: str
    method: str
    scheme: str
    group_size: int
    device: str
    calibration: str
    ids: str
    samples: int
    max_tokens: int
    seed: int
    dtype: str = "auto"
    batch_size: int = 1
    ignore: tuple[str, ...] = ("lm_head", r"re:.*\.(gate|router)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Where one process' time and memory went.

    ``load_s`` reads the source's weights, ``work_s`` calibrates and quantizes, ``save_s`` writes
    (and, where a tool does so, verifies). ``total_s`` is the whole process, seen from outside.
    ``allocated_bytes`` is what the process' own allocator says; ``peak_bytes`` the device's memory
    above what was in use before (sampled), on a CPU the process' resident memory.
    """

    import_s: float
    load_s: float
    work_s: float
    save_s: float
    total_s: float
    peak_bytes: int
    allocated_bytes: int | None
    samples: int
    tokens: int
    versions: tuple[tuple[str, str], ...]
    phases: tuple[tuple[str, float], ...] = ()


class JobError(Exception):
    """A process that made nothing; the message is the last thing it said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """How one quantizer is started: its interpreter, its script, what it finds on its path."""

    name: str
    command: tuple[str, ...]
    warm: str
    python_path: str | None
    at_root: bool

    def environment(self, device: str) -> dict[str, str]:
        """This process' variables, without a network, and without a GPU where it is not wanted."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        env.pop("PYTHONPATH", None)
        if self.python_path:
            env["PYTHONPATH"] = self.python_path
        if device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        return env

    def warm_up(self, device: str) -> None:
        """Import once, unmeasured, so that nobody's first run pays for cold files.

        Raises ``JobError`` where the tool cannot be imported.
        """
        command = [self.command[0], "-c", self.warm]
        try:
            done = subprocess.run(
                command,
                env=self.environment(device),
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise JobError(f"{self.name} cannot be started: {error}") from error
        if done.returncode:
            raise JobError(f"{self.name} cannot be imported: {last_words(done.stderr)}")


def whet_tool() -> Tool:
    """This project, in the environment that runs the benchmark."""
    return Tool(
        name="whet",
        command=(sys.executable, "-m", "benchmarks.quantizer_whet"),
        warm="import whet.quant.layer_pass, transformers",
        python_path=os.environ.get("PYTHONPATH"),
        at_root=True,  # where ``-m benchmarks`` is found
    )


def peer_tool(python: str, python_path: str | None) -> Tool:
    """llm-compressor in an environment of its own: ``-P`` keeps this folder off its path."""
    return Tool(
        name="llm-compressor",
        command=(python, "-P", str(_PEER_SCRIPT)),
        warm="from llmcompressor import oneshot",
        python_path=python_path,
        at_root=False,  # it leaves logs where it stands
    )


def run_job(tool: Tool, job: Job, scratch: Path, *, limit_s: float) -> Spent:
    """Run ``job`` to its end, or for ``limit_s``. Raises ``JobError`` with its last words."""
    scratch.mkdir(parents=True, exist_ok=True)
    job_file, answer, log = (scratch / name for name in ("job.json", "result.json", "log.txt"))
    answer.unlink(missing_ok=True)
    job_file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    with DeviceMeter(watch=job.device != "cpu") as meter, log.open("w") as stream:
        started_ns = time.monotonic_ns()
        try:
            done = subprocess.run(
                [*tool.command, str(job_file), str(answer)],
                env=tool.environment(job.device),
                cwd=ROOT if tool.at_root else scratch,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            words = last_words(log.read_text(encoding="utf-8", errors="replace"))
            raise JobError(f"stopped after {limit_s:g} s; it said last: {words}") from error
        except OSError as error:
            raise JobError(str(error)) from error
        total_s = (time.monotonic_ns() - started_ns) / NS_PER_S
    if done.returncode or not answer.is_file():
        words = last_words(log.read_text(encoding="utf-8", errors="replace"))
        raise JobError(words or f"it ended with code {done.returncode} and said nothing")
    return _spent(json.loads(answer.read_text(encoding="utf-8")), total_s, meter.peak_bytes)


def _spent(answer: Mapping[str, Any], total_s: float, device_bytes: int | None) -> Spent:
    seconds = {name: float(answer[name]) for name in ("import_s", "load_s", "work_s", "save_s")}
    return Spent(
        **seconds,
        total_s=total_s,
        peak_bytes=answer["resident_bytes"] if device_bytes is None else device_bytes,
        allocated_bytes=answer["allocated_bytes"],
        samples=answer["samples"],
        tokens=answer["tokens"],
        versions=tuple(sorted(answer["versions"].items())),
        phases=tuple(answer.get("phases", {}).items()),
    )


def last_words(log: str) -> str:
    """The last line of ``log`` that says anything: of a traceback, the error itself."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class DeviceMeter:
    """The first GPU's memory above what was in use at the start, sampled while it is open.

    One meter for every tool: an allocator reports only what it handed out, not what it holds.
    """

    def __init__(self, *, watch: bool) -> None:
        """``watch=False`` measures nothing."""
        self._watch = watch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._peak = 0
        self._before = 0

    @property
    def peak_bytes(self) -> int | None:
        """None where nothing was watched."""
        return self._peak - self._before if self._watch else None

    def __enter__(self) -> DeviceMeter:
        """Take the memory in use as the floor, and start."""
        if self._watch:
            self._before = self._peak = _device_bytes()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        if self._watch:
            self._stop.set()
            self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._peak = max(self._peak, _device_bytes())


def _device_bytes() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    finally:
        pynvml.nvmlShutdown()
