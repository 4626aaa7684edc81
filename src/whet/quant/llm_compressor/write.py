"""A recipe written by llm-compressor: staged, read back and recorded as one of whet's own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import read_facts
from whet.checkpoint.files import read_json
from whet.core.errors import CheckpointError, QuantizationError, UsageError
from whet.core.protocols import Progress
from whet.core.records.model import ModelFacts
from whet.core.records.quant import Phase, QuantizedCheckpoint
from whet.core.spec import GROUPED
from whet.core.staging import require_space, staged
from whet.core.store import translate_disk_errors
from whet.core.units import NS_PER_S
from whet.quant.calibration import Calibration, load_for
from whet.quant.checkpoint_record import (
    CacheKey,
    copy_beside,
    describe,
    write_config,
    write_record,
)
from whet.quant.suitability import inputs_needed

VARIABLE: Final = "WHET_LLM_COMPRESSOR"
_LEAST: Final = (0, 14)
_MAKE: Final = (
    "python3 -m venv llmc && llmc/bin/pip install llmcompressor==0.14.0 && "
    f"export {VARIABLE}=$PWD/llmc/bin/python"
)
_ASK: Final = "from importlib import metadata; print(metadata.version('llmcompressor'))"
_LIMIT_S: Final = 60.0
_SCRIPT: Final = Path(__file__).with_name("job.py")
_IGNORE: Final = (
    "re:.*lm_head",
    r"re:.*(?:^|\.)(?:router|gate|shared_expert_gate)(?:\..*)?$",
    r"re:.*(?:vision|visual|audio|image|multi_modal|mtp).*",
)
"""What engines keep in 16 bits."""
_PHASES: Final = {"import_s": "import", "load_s": "read", "work_s": "fit", "save_s": "write"}
_LAYERS: Final = re.compile(r"\((\d+)/(\d+)\): ")
_ANSWER: Final = "result.json"
_TICK_S: Final = 0.2
_TAIL_BYTES: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmCompressor:
    """A Python that has llm-compressor, and the version."""

    python: Path
    version: str

    @property
    def title(self) -> str:
        """``llm-compressor 0.14.0``."""
        return f"llm-compressor {self.version}"


def find_llm_compressor() -> LlmCompressor:
    """The environment that ``WHET_LLM_COMPRESSOR`` names; ``UsageError`` with what makes one."""
    python = Path(os.environ.get(VARIABLE) or "")
    if not os.environ.get(VARIABLE):
        raise UsageError(
            f"llm-compressor runs in an environment of its own, and {VARIABLE} does not name the "
            "Python of one",
            fix=_MAKE,
        )
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        version = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise UsageError(
            f"{VARIABLE} names {python}, which cannot be started ({reason})", fix=_MAKE
        ) from error
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < _LEAST:
        raise UsageError(
            f"{python}, which {VARIABLE} names, has llm-compressor {version or '(none)'}, and 0.14 "
            "or later is needed",
            fix=_MAKE,
        )
    return LlmCompressor(python=python.absolute(), version=version)


def write_checkpoint(
    facts: ModelFacts,
    target: tuple[Path, CacheKey],
    *,
    tool: LlmCompressor,
    calibration: Path,
    progress: Progress,
    device: str | None,
) -> QuantizedCheckpoint:
    """Quantize the checkpoint of ``facts`` with llm-compressor into a new folder.

    ``target`` is that folder and the recipe. It gets the token ids that whet's own quantizer would
    draw. Raises ``QuantizationError`` where it fails or what it wrote is not the recipe's,
    ``UsageError`` (calibration) and ``StorageError`` (disk).
    """
    out, key = target
    started_ns = time.monotonic_ns()
    require_space(out, facts.weight_bytes, "the checkpoint")
    log = out.with_name(f"{out.name}.llm-compressor.log")
    with staged(out) as stage:
        reads = inputs_needed(key.recipe)
        samples = load_for(key.recipe, facts, calibration) if reads else None
        scratch = stage.folder / "written"
        with translate_disk_errors(stage.folder):
            scratch.mkdir()
            job = _write_job(scratch, facts, key, samples)
        with _process(tool, job, log, device) as process:
            _wait(process, log, progress)
        result = _result(tool, process.returncode, job.with_name(_ANSWER), log)
        quantization = _take(scratch, stage.folder)
        copy_beside(Path(facts.path), stage.folder)
        write_config(Path(facts.path), stage.folder, quantization)
        written = _verified(stage.folder, facts, key)
        done = describe(
            out,
            key,
            written,
            units=(),
            seconds=(time.monotonic_ns() - started_ns) / NS_PER_S,
            writer=tool.title,
            **_measured(samples, result),
        )
        write_record(stage.folder, key, done)
        stage.keep()
    log.unlink(missing_ok=True)
    return done


def _measured(samples: Calibration | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the record that the job reports, and those of its calibration text."""
    return {
        "calibration": None if samples is None else samples.facts,
        "warnings": () if samples is None else samples.facts.warnings,
        "peak_memory_bytes": result["allocated_bytes"],
        "device": str(result["device"]),
        "phases": tuple(
            Phase(name=name, seconds=float(result[item])) for item, name in _PHASES.items()
        ),
    }


def _write_job(
    scratch: Path, facts: ModelFacts, key: CacheKey, samples: Calibration | None
) -> Path:
    recipe = key.recipe
    ids, job = scratch / "ids.json", scratch / "job.json"
    ids.write_text(json.dumps([] if samples is None else samples.ids), encoding="utf-8")
    content = {
        "source": facts.path,
        "out": str(scratch / "checkpoint"),
        "ids": str(ids),
        "method": recipe.method,
        "scheme": recipe.scheme,
        "group_size": recipe.group_size if recipe.scheme in GROUPED else None,
        "ignore": _IGNORE,
        "dtype": "auto",
        "batch_size": 1,
    }
    job.write_text(json.dumps(content), encoding="utf-8")
    return job


@contextmanager
def _process(
    tool: LlmCompressor, job: Path, log: Path, device: str | None
) -> Iterator[subprocess.Popen[bytes]]:
    """The running job; its process group has ended on leaving, whatever happened."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if device is not None and device != "cuda":
        env["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cpu").removeprefix("cuda:")
    command = [str(tool.python), "-I", str(_SCRIPT), str(job), str(job.with_name(_ANSWER))]
    with translate_disk_errors(log), log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=job.parent,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, progress: Progress) -> None:
    """Report layers as llm-compressor's progress bars name them, until it ends."""
    while process.poll() is None:
        time.sleep(_TICK_S)
        if marks := _LAYERS.findall(_tail(log)):
            step, total = map(int, marks[-1])
            progress(step - 1, total)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _result(tool: LlmCompressor, code: int, answer: Path, log: Path) -> dict[str, Any]:
    """What the job reports; ``QuantizationError`` with its last line where it failed."""
    if code == 0 and answer.is_file():
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return result
    lines = [line.strip() for line in _tail(log).splitlines() if line.strip()]
    reason = lines[-1] if lines else f"it ended with code {code} and no message"
    if code < 0:
        reason = f"it was ended by {signal.Signals(-code).name}; memory may have run out"
    raise QuantizationError(f"{tool.title} failed: {reason} (its log: {log})")


def _take(scratch: Path, folder: Path) -> Mapping[str, Any]:
    """Move the weights up, remove the rest; returns the ``quantization_config``."""
    written = scratch / "checkpoint"
    quantization = read_json(written / "config.json").get("quantization_config")
    if not isinstance(quantization, dict):
        raise QuantizationError("llm-compressor quantized no layer of this architecture")
    with translate_disk_errors(folder):
        for path in written.glob("*.safetensors*"):
            shutil.copymode(scratch / "ids.json", path)  # it writes files that only we can read
            path.rename(folder / path.name)
        shutil.rmtree(scratch)
    return quantization


def _verified(folder: Path, source: ModelFacts, key: CacheKey) -> ModelFacts:
    """The facts of what was written; ``QuantizationError`` where it is not the recipe's."""
    from whet.quant.verify import require_finite

    try:
        written = read_facts(folder)
    except CheckpointError as error:
        reason = str(error).replace(f"{folder}/", "")
        raise QuantizationError(f"llm-compressor wrote what engines misread: {reason}") from error
    expected = key.recipe.stored_scheme
    if written.stored.scheme != expected:
        raise QuantizationError(
            f"llm-compressor stored {written.stored.scheme}, and the recipe is {expected}: it did "
            "not quantize the linear layers of this architecture"
        )
    if written.parameters != source.parameters:
        raise QuantizationError(
            f"llm-compressor wrote {written.parameters:,} parameters of {source.parameters:,}: its "
            "transformers does not know every tensor of this architecture"
        )
    require_finite(folder)
    return written
