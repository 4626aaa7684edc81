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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.table import Row
from whet.core.units import GIB, NS_PER_S

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


def run_job(tool: Tool, job: Job, scratch: Path, *, limit_s: float) -> Row:
    """Run ``job`` to its end, or for ``limit_s``: columns of a row.

    ``load_s`` reads the source's weights, ``work_s`` calibrates and quantizes, ``save_s`` writes
    (and, where a tool does so, verifies); ``without_loading_s`` is work and saving, ``total_s`` the
    whole process, seen from outside. ``peak_memory_gib`` is the device's, sampled from outside and
    above what was in use before, or on a CPU the process' resident memory, as ``memory_kind`` says;
    ``allocated_gib`` is what the process' own allocator says. Raises ``JobError`` with its last
    words.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    job_file, answer, log = (scratch / name for name in ("job.json", "result.json", "log.txt"))
    answer.unlink(missing_ok=True)
    job_file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    on_device = job.device != "cpu"
    with DeviceMeter(watch=on_device) as meter, log.open("w") as stream:
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
    made = json.loads(answer.read_text(encoding="utf-8"))
    allocated, phases = made["allocated_bytes"], made.get("phases", {})
    return {
        "calibration_samples": made["samples"] or None,
        "calibration_tokens": made["tokens"] or None,
        **{name: made[name] for name in ("import_s", "load_s", "work_s", "save_s")},
        "without_loading_s": made["work_s"] + made["save_s"],
        "total_s": total_s,
        "peak_memory_gib": (meter.peak_bytes if on_device else made["resident_bytes"]) / GIB,
        "memory_kind": "device" if on_device else "process",
        "allocated_gib": None if allocated is None else allocated / GIB,
        "phases": " ".join(f"{name}={seconds:.2f}" for name, seconds in phases.items()) or None,
        "versions": " ".join(f"{name}={it}" for name, it in sorted(made["versions"].items())),
    }


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
    def peak_bytes(self) -> int:
        """0 where nothing was watched."""
        return self._peak - self._before

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
