"""Where a start spent its time, by the sentences and the clock of its log."""

from __future__ import annotations

import re
from typing import Final, TypedDict

START_LINE: Final = "Initializing a V1 LLM engine (v"
"""Of the engine's line of configuration."""
_STAMPED: Final = re.compile(
    r"^\((?P<who>[A-Za-z]+)\S* pid=\d+\) [A-Z]+ \d\d-\d\d (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) "
    r"\[[^\]]+\] (?P<text>.*)",
    re.MULTILINE,
)
_LISTENS: Final = ("Starting vLLM server on", "OpenAI server is ready")
_DAY_S: Final = 24 * 60 * 60
_MODEL: Final = re.compile(r"Model loading took [\d.]+ GiB memory and ([\d.]+) seconds")
_WEIGHTS: Final = re.compile(r"Loading weights took ([\d.]+) seconds")
_INIT: Final = re.compile(r"init engine \(.*\) took ([\d.]+) s")
_COMPILE: Final = re.compile(r"init engine \(.*\) took .*\(compilation: ([\d.]+) s\)")
_GRAPHS: Final = re.compile(r"Graph capturing finished in ([\d.]+) secs")


class StartTimes(TypedDict):
    """The fields of ``EngineFacts`` that are parts of a start."""

    core_s: float | None
    load_s: float | None
    init_s: float | None
    compile_s: float | None
    graphs_s: float | None


def read_start_times(log: str) -> StartTimes:
    """Seconds of each part, from a log without colours; None where it says nothing.

    A CPU's log has no time of the whole model's loading: there it is that of its weights.
    """
    weights = [float(seconds) for seconds in _WEIGHTS.findall(log)]
    return StartTimes(
        core_s=_core_s(log),
        load_s=_first(_MODEL, log) or (sum(weights) if weights else None),
        init_s=_first(_INIT, log),
        compile_s=_first(_COMPILE, log),
        graphs_s=_first(_GRAPHS, log),
    )


def _first(pattern: re.Pattern[str], log: str) -> float | None:
    match = pattern.search(log)
    return None if match is None else float(match[1])


def _core_s(log: str) -> float | None:
    """From the engine core's first line until the server listens, in whole seconds.

    Workers in processes of their own import everything once more: that time is left out.
    """
    began = core = spawned = None
    for line in _STAMPED.finditer(log):
        now = 3600 * int(line["h"]) + 60 * int(line["m"]) + int(line["s"])
        if began is None and line["text"].startswith(START_LINE):
            began = now
        elif began is not None and line["text"].startswith(_LISTENS):
            return float((now - began) % _DAY_S - (spawned or 0))
        if spawned is None and core is not None and "Worker" in line["who"]:
            spawned = (now - core) % _DAY_S
        if line["who"] == "EngineCore":
            core = now
    return None
