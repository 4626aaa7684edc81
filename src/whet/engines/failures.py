"""From an engine's log to one sentence that says what happened and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\)\s*)?"
    r"(?:(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d [\d:]+ \[[^\]]+\]\s?)?"
)
_TELLING = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt)\w*): \S")
_LEVEL = re.compile(r"\b(?:INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d ")
_SECOND_HAND = ("EngineDeadError", "Engine core init", "WorkerProc initialization failed")
_SHOWN = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """``kind`` is a word that code may ask for; ``sentence`` is for a person and holds the mend."""

    kind: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sign:
    kind: str
    pattern: re.Pattern[str]
    sentence: str


def _sign(kind: str, pattern: str, sentence: str) -> _Sign:
    return _Sign(kind=kind, pattern=re.compile(pattern, re.IGNORECASE), sentence=sentence)


_SIGNS: Final = (
    _sign(
        "kv_too_small",
        r"max seq len\s+\((?P<asked>\d+)\).*?estimated maximum model length is (?P<fits>\d+)",
        "the KV cache has no room for max_model_len {asked}; set engine.args.max_model_len to "
        "{fits} or less, or give the cache more memory",
    ),
    _sign(
        "kv_too_small",
        r"max seq len\s+\((?P<asked>\d+)\), \((?P<need>[\d.]+) GiB KV\s+cache is needed[^\n]*?"
        r"memory \((?P<have>[\d.]+) GiB\)",
        "max_model_len {asked} needs {need} GiB of KV cache where {have} GiB are free; lower it "
        "or raise gpu_memory_utilization (on a CPU: VLLM_CPU_KVCACHE_SPACE)",
    ),
    _sign(
        "kv_too_small",
        r"No available memory for the cache blocks",
        "no memory is left for the KV cache after the weights; lower max_model_len, raise "
        "gpu_memory_utilization (on a CPU: VLLM_CPU_KVCACHE_SPACE) or use a larger device",
    ),
    _sign(
        "model_len",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than[^\n]*?=(?P<fits>\d+)",
        "max_model_len {asked} is more than the model was made for; set it to {fits} or less",
    ),
    _sign(
        "busy_memory",
        r"(?P<line>Free memory on device [^\n]*? less than[^\n.]*|Available memory on node "
        r"[^\n]*? less than[^\n.]*|Error in memory profiling[^\n.]*)",
        "{line}; end what else uses the memory, or lower gpu_memory_utilization (on a CPU: "
        "VLLM_CPU_KVCACHE_SPACE)",
    ),
    _sign(
        "out_of_memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|DefaultCPUAllocator: can't allocate"
        r"|Cannot allocate memory|\bMemoryError\b",
        "it ran out of memory; lower max_model_len, max_num_seqs or gpu_memory_utilization, or use "
        "a larger device",
    ),
    _sign(
        "port",
        r"address already in use",
        "its port was taken by another program; run again (another port is chosen each time)",
    ),
    _sign(
        "no_gpu",
        r"No CUDA GPUs are available|Failed to infer device type|Found no NVIDIA driver"
        r"|CUDA driver version is insufficient",
        "it finds no GPU that it can use; check nvidia-smi, or install a CPU build of the engine",
    ),
    _sign(
        "architecture",
        r"(?P<line>Model architectures? [^\n]*? (?:not supported|failed to be inspected)[^\n.]*)",
        "{line}; use a newer engine or another model",
    ),
    _sign(
        "quantization",
        r"Unknown quantization method: (?P<what>[\w-]+)",
        "it knows no quantization {what}: it may be a plug-in of this version that is not "
        "installed, see whet doctor; or quantize with a recipe",
    ),
    _sign(
        "no_kernel",
        r"Failed to find a kernel that can implement the (?P<what>\w+)[^\n]*",
        "this device has no kernel for the {what} weights; choose another quantization scheme",
    ),
    _sign(
        "flag",
        r"error: (?P<line>(?:unrecognized arguments|argument --|ambiguous option)[^\n]*)",
        "it does not know a flag ({line}); correct engine.args",
    ),
    _sign(
        "compile_cache",
        r"torch_compile_cache[^\n]*(?:No such file|corrupt|Error)|UnpicklingError|InductorError"
        r"|AOTAutogradCache[^\n]*Error|Ran out of input|standalone_compile[^\n]*Error",
        "its compile cache is damaged; remove ~/.cache/vllm/torch_compile_cache",
    ),
    _sign(
        "tokenizer",
        r"(?P<line>Target and draft model should have the same vocabulary size[^\n]*)",
        "{line}; use a draft that was made with the target's tokenizer",
    ),
    _sign(
        "missing_module",
        r"(?:ModuleNotFoundError|ImportError): (?P<line>[^\n]*)",
        "a Python package of the engine is missing ({line}); install it beside the engine",
    ),
)

RETRIED: Final = frozenset({"port", "compile_cache", "busy_memory"})
"""Failures of the surroundings, not of the configuration: tried once more."""


def plain_lines(log: str) -> list[str]:
    """The log's lines without colours and without the engine's process, level and time prefix."""
    return [_PREFIX.sub("", line, count=1) for line in _ANSI.sub("", log).splitlines()]


def diagnose(log: str) -> Failure | None:
    """The known failure that the log tells of, else its last exception, else None.

    What went wrong first in a list of ever less specific signs wins, because one fault of an engine
    core is repeated by the server above it in vaguer words.
    """
    lines = plain_lines(log)
    text = "\n".join(lines)
    for sign in _SIGNS:
        if match := sign.pattern.search(text):
            return Failure(kind=sign.kind, sentence=sign.sentence.format(**match.groupdict()))
    telling = _last_exception(lines)
    return None if telling is None else Failure(kind="other", sentence=f"it said: {telling}")


def _last_exception(lines: list[str]) -> str | None:
    """The innermost exception: those that only report another process' death come last."""
    found = [line.strip()[:_SHOWN] for line in lines if _TELLING.match(line)]
    own = [line for line in found if not any(word in line for word in _SECOND_HAND)]
    return (own or found)[-1] if found else None


def last_words(log: str) -> str:
    """The last thing that the engine logged, else its last line with a word in it."""
    logged = [line for line in log.splitlines() if _LEVEL.search(line)]
    for candidates in (plain_lines("\n".join(logged)), plain_lines(log)):
        lines = [line.strip() for line in candidates if re.search(r"\w", line)]
        if lines:
            return lines[-1][:_SHOWN]
    return "nothing"
