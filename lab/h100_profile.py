"""Where a step's time goes on the device: profile a loaded vLLM server and sum up its traces.

    python -m lab.h100_profile URL TRACE_DIR --prompts FILE --sizes 1,32,256 --out DIR

The server was started with ``--profiler-config`` and ``"torch_profiler_dir": TRACE_DIR``. FILE has
a list of token ids under "ids" on each line. ``DIR/profile-SIZE.json`` is one size's summary.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import re
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

Event = Mapping[str, Any]

MAX_TOKENS: Final = 128
PROFILED_STEPS: Final = 60
PROFILED_S: Final = 1.5
STEADY_S: Final = 2.0
WARM_REQUESTS: Final = 2
WARM_S: Final = 8.0
SKIPPED_STEPS: Final = 5
"""The first steps of a window: under the profiler a graph's first replay is slow."""
TRACE_S: Final = 180.0

PROFILER: Final = {
    "profiler": "torch",
    "ignore_frontend": True,
    "torch_profiler_with_stack": False,
    "torch_profiler_record_shapes": False,
    "torch_profiler_use_gzip": False,
    "torch_profiler_dump_cuda_time_total": False,
}
"""vLLM's ``--profiler-config``, without what slows the profile or its end down."""

_STEP: Final = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)\(")
_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_API: Final = ("cuda_runtime", "cuda_driver")
_CLASSES: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("kv-cache write", r"reshape_and_cache|concat_and_cache"),
        ("attention", r"flash(?!infer)|fmha|attention|Batch(Decode|Prefill)With"),
        ("fused norm/rope/act", r"triton_(?!tem|mm)|rms_?norm|layer_?norm|rotary|act_and_mul|silu"
         r"|(?<!de)quant"),
        ("matmul 4-bit", r"machete|marlin|w4a|awq|gptq"),
        ("matmul 8-bit", r"scaled_mm|e4m3|e5m2|fp8|s8s8|int8_?mm|imma|nvjet_(sm\d+_)?q"),
        ("matmul 16-bit", r"nvjet|gemm|gemv|cutlass|cublas|wgmma|splitk|triton_(tem|mm)"),
        ("sampling", r"arg_?max|softmax|top_?[kp]|sampl|gumbel|temperature|penalt|rejection"),
    )
)  # fmt: skip
CLASSES: Final = (*(name for name, _ in _CLASSES), "memcpy", "other")
_GAPS: Final = ((5.0, "<5 us"), (50.0, "5-50 us"), (500.0, "50-500 us"), (float("inf"), ">500 us"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One engine step: when its launches begin, when its first kernel does, its requests."""

    cpu_us: float
    gpu_us: float
    context: int = 0
    generation: int = 0


def summarize(events: Sequence[Event], skip: int = SKIPPED_STEPS) -> dict[str, Any]:
    """Sum up a worker's trace, from the first kernel of step ``skip`` to that of the last step.

    A trace without step markers counts as one step, as long as all of its GPU work.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    work = sorted((e for e in spans if e.get("cat") in _GPU), key=lambda e: float(e["ts"]))
    if not work:
        raise ValueError("the trace has no work on a GPU")
    calls = [event for event in spans if event.get("cat") in _API]
    marks = [e for e in spans if e.get("cat") == "user_annotation" and _STEP.match(e["name"])]
    first = _steps(marks, calls, work)
    steps = first[min(skip, max(len(first) - 2, 0)) :]
    if len(steps) < 2:
        steps = [
            Step(cpu_us=min(e["ts"] for e in spans), gpu_us=work[0]["ts"]),
            Step(cpu_us=max(map(_end, spans)), gpu_us=max(map(_end, work))),
        ]
    begin, end, count = steps[0].gpu_us, steps[-1].gpu_us, len(steps) - 1
    inside = [event for event in work if begin <= event["ts"] < end]
    busy, gaps = _busy(((e["ts"], _end(e)) for e in work), begin, end)
    made = [event for event in calls if steps[0].cpu_us <= event["ts"] < steps[-1].cpu_us]
    whole = steps[:-1]
    return {
        "window_ms": _ms(end - begin),
        "gpu_busy_ms": _ms(busy),
        "gpu_idle_share": round(1 - busy / (end - begin), 4),
        "step_markers": len(marks),
        "steps": count,
        "ms_a_step": _ms((end - begin) / count),
        "prefill_step_share": round(fmean(step.context > 0 for step in whole), 4),
        "generating_requests_a_step": round(fmean(step.generation for step in whole), 2),
        "kernels": sum(event["cat"] == "kernel" for event in inside),
        "by_kind": _by_kind(steps, made),
        **_kernels(inside, count),
        "gaps": gaps,
        "api_a_step": _api(made, marks, count),
        "cpu_ms_a_step": _cpu_ranges(spans, marks, steps),
    }


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0.0))


def _ms(us: float) -> float:
    return round(us / 1000, 4)


def _steps(marks: Iterable[Event], calls: Iterable[Event], work: Iterable[Event]) -> list[Step]:
    """The steps that ran kernels: one's launches end where the next one's marker begins."""
    called = {event.get("args", {}).get("correlation"): event["ts"] for event in calls}
    marked = sorted(
        (float(mark["ts"]), int(match[1]), int(match[2]))
        for mark in marks
        if (match := _STEP.match(mark["name"])) and int(match[1]) + int(match[2]) > 0
    )
    starts = [mark[0] for mark in marked]
    first: dict[int, float] = {}
    for event in work:
        launched = called.get(event.get("args", {}).get("correlation", -1))
        if event["cat"] == "kernel" and launched is not None:
            first.setdefault(bisect_right(starts, launched) - 1, float(event["ts"]))
    return [
        Step(cpu_us=cpu, gpu_us=first[index], context=context, generation=generation)
        for index, (cpu, context, generation) in enumerate(marked)
        if index in first
    ]


def _busy(
    spans: Iterable[tuple[float, float]], begin: float, end: float
) -> tuple[float, dict[str, dict[str, float]]]:
    """The length of the union of ``spans`` (in order) inside the window, and its gaps by size."""
    reached, gaps = begin, dict[str, list[float]]((name, []) for _, name in _GAPS)
    for start, stop in itertools.chain(spans, [(end, end)]):
        if (gap := min(start, end) - reached) > 0:
            gaps[next(name for most, name in _GAPS if gap < most)].append(gap)
        reached = max(reached, min(stop, end))
    sizes = {name: {"count": len(us), "ms": _ms(sum(us))} for name, us in gaps.items()}
    return end - begin - sum(map(sum, gaps.values())), sizes


def kernel_class(event: Event) -> str:
    """The first class whose pattern a kernel's name has."""
    if event["cat"] != "kernel":
        return "memcpy"
    names = (name for name, pattern in _CLASSES if pattern.search(event["name"]))
    return next(names, "other")


def _kernels(inside: Iterable[Event], steps: int) -> dict[str, Any]:
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in inside:
        runs[event["name"], kernel_class(event)].append(event["dur"])
    total = dict.fromkeys(CLASSES, 0.0)
    for (_, kind), us in runs.items():
        total[kind] += sum(us)
    largest = sorted(runs.items(), key=lambda item: -sum(item[1]))[:15]
    return {
        "class_ms_a_step": {kind: _ms(us / steps) for kind, us in total.items()},
        "top_kernels": [
            {"name": name[:240], "class": kind, "calls": len(us), "total_ms": _ms(sum(us)),
             "mean_us": round(fmean(us), 2)}
            for (name, kind), us in largest
        ],
    }  # fmt: skip


def _by_kind(steps: Sequence[Step], made: Iterable[Event]) -> dict[str, dict[str, float]]:
    """Steps that only decode, and those with any prefill: how long, and how they launch."""
    starts = [step.cpu_us for step in steps]
    graphs: Counter[int] = Counter()
    launches: Counter[int] = Counter()
    for event in made:
        if "Launch" in event["name"]:
            counter = graphs if "GraphLaunch" in event["name"] else launches
            counter[bisect_right(starts, event["ts"]) - 1] += 1
    kinds: dict[str, list[int]] = {"decode": [], "prefill": []}
    for index, step in enumerate(steps[:-1]):
        kinds["prefill" if step.context else "decode"].append(index)
    return {
        kind: {
            "steps": len(chosen),
            "ms_a_step": _ms(fmean(steps[i + 1].gpu_us - steps[i].gpu_us for i in chosen)),
            "graph_launches_a_step": round(fmean(graphs[i] for i in chosen), 2),
            "kernel_launches_a_step": round(fmean(launches[i] for i in chosen), 2),
        }
        for kind, chosen in kinds.items()
        if chosen
    }


def _api(made: Iterable[Event], marks: Sequence[Event], steps: int) -> dict[str, dict[str, float]]:
    thread = marks[0]["tid"] if marks else None
    times: dict[str, list[float]] = defaultdict(list)
    for event in made:
        other = "" if thread is None or event["tid"] == thread else " (another thread)"
        times[event["name"] + other].append(event["dur"])
    return {
        name: {"calls": round(len(us) / steps, 2), "ms": _ms(sum(us) / steps)}
        for name, us in sorted(times.items(), key=lambda item: -sum(item[1]))[:25]
    }


def _cpu_ranges(
    spans: Iterable[Event], marks: Sequence[Event], steps: Sequence[Step]
) -> dict[str, float]:
    """CPU time a step of the ranges of the thread that runs the steps, by their nesting."""
    if not marks:
        return {}
    thread, first, last = marks[0]["tid"], steps[0].cpu_us, steps[-1].cpu_us
    ours = (
        event
        for event in spans
        if event.get("cat") in ("user_annotation", "cpu_op")
        and event["tid"] == thread
        and first <= event["ts"] < last
        and not event["name"].startswith("ProfilerStep")
    )
    total: dict[str, float] = defaultdict(float)
    outer, within, reached = 0.0, list[tuple[float, str]](), first
    for event in sorted(ours, key=lambda event: (event["ts"], -event["dur"])):
        while within and event["ts"] >= within[-1][0]:
            within.pop()
        path = "torch ops in no range"
        if event["cat"] == "user_annotation":
            name = "execute_model" if _STEP.match(event["name"]) else event["name"]
            name = re.sub(r"\bf[0-9a-z]{20,}|\d+", "N", name)
            path = f"{within[-1][1]} > {name}" if within else name
            within.append((_end(event), path))
        elif event["ts"] < reached:
            continue
        total[path] += event["dur"]
        if event["ts"] >= reached:
            outer, reached = outer + event["dur"], _end(event)
    total["in none of these"] = max(last - first - outer, 0.0)
    largest = sorted(total.items(), key=lambda item: -item[1])[:25]
    return {name: _ms(us / (len(steps) - 1)) for name, us in largest}


class Load:
    """``size`` requests in flight; the first ones differ in length, so later ones are spread."""

    def __init__(self, url: str, size: int, prompts: Iterator[Sequence[int]]) -> None:
        self.url, self.size, self._prompts = url, size, prompts
        self.chunks, self.ended = [0] * size, [0] * size

    async def keep(self, session: Any, slot: int) -> None:
        """Send one request after another until cancelled."""
        for number in itertools.count():
            share = (slot + 1) / self.size if number == 0 else 1.0
            body = {"prompt": next(self._prompts), "max_tokens": max(1, int(MAX_TOKENS * share)),
                    "temperature": 0, "ignore_eos": True, "stream": True}  # fmt: skip
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b'data: {"error"'):
                        raise RuntimeError(line.decode())
                    self.chunks[slot] += line.startswith(b"data: {")
            self.ended[slot] += 1

    async def steady(self, pid: int | None) -> dict[str, Any]:
        """The pace without a profiler, and the cores that the server and this client use."""
        before, used, began = sum(self.chunks), cpu_seconds(pid), time.monotonic()
        await asyncio.sleep(STEADY_S)
        seconds, chunks = time.monotonic() - began, sum(self.chunks) - before
        cores = {name: s - used.get(name, 0.0) for name, s in cpu_seconds(pid).items()}
        return {
            "chunks_a_s": round(chunks / seconds, 1),
            "ms_a_chunk": round(1000 * seconds * self.size / max(chunks, 1), 3),
            "cpu_cores": {name: round(s / seconds, 3) for name, s in cores.items()},
        }


def cpu_seconds(pid: int | None) -> dict[str, float]:
    """CPU time so far of this process and of those of the server's tree, by name and id."""
    import psutil

    used = {"client": time.process_time()}
    server = psutil.Process(pid) if pid is not None else None
    for process in [server, *server.children(recursive=True)] if server else []:
        with contextlib.suppress(psutil.Error):
            times, title = process.cpu_times(), " ".join(process.cmdline())
            name = "API server: " * (process == server and "::" not in title) + title[:60]
            used[f"{name} ({process.pid})"] = times.user + times.system
    return used


async def _until(true: Callable[[], bool], seconds: float) -> None:
    latest = time.monotonic() + seconds
    while not true() and time.monotonic() < latest:
        await asyncio.sleep(0.005)


async def profile(load: Load, traces: Path, pid: int | None = None) -> tuple[Path, dict[str, Any]]:
    """Load the server, profile some steps of it; the trace, and the pace before it."""
    import aiohttp

    known = _traces(traces)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        slots = [group.create_task(load.keep(session, slot)) for slot in range(load.size)]
        await _until(lambda: min(load.ended) >= WARM_REQUESTS, WARM_S)
        steady = await load.steady(pid)
        async with session.post(f"{load.url}/start_profile") as response:
            response.raise_for_status()
        before = list(load.chunks)
        await _until(
            lambda: max(map(int.__sub__, load.chunks, before)) >= PROFILED_STEPS + SKIPPED_STEPS,
            PROFILED_S,
        )
        async with session.post(f"{load.url}/stop_profile") as response:
            response.raise_for_status()
        for slot in slots:
            slot.cancel()
    await _until(lambda: bool(_traces(traces) - known), TRACE_S)
    if not (new := _traces(traces) - known):
        raise FileNotFoundError(f"no new worker trace in {traces}")
    return min(new), steady


def _traces(folder: Path) -> set[Path]:
    """The workers' traces; the API server's own has no GPU in it."""
    return {p for p in folder.glob("*.pt.trace.json*") if ".async_llm." not in p.name}


def read_trace(path: Path) -> list[dict[str, Any]]:
    """A trace's events, once the whole of it is written."""
    latest = time.monotonic() + TRACE_S
    while True:
        try:
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            events: list[dict[str, Any]] = json.loads(text, strict=False)["traceEvents"]
            return events
        except (EOFError, ValueError):
            if time.monotonic() > latest:
                raise
            time.sleep(1)


def table(summaries: Mapping[int, Mapping[str, Any]]) -> str:
    """A row a size, in Markdown."""
    head = ("in flight", "ms a chunk, no profiler", "ms a step", "GPU idle", "prefill steps",
            "kernels a step", "graph launches: decode", "prefill", *CLASSES)  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for size, summary in summaries.items():
        graphs = [
            str(summary["by_kind"].get(kind, {}).get("graph_launches_a_step", ""))
            for kind in ("decode", "prefill")
        ]
        cells = [str(size), f"{summary['steady']['ms_a_chunk']:.2f}", f"{summary['ms_a_step']:.2f}",
                 f"{summary['gpu_idle_share']:.1%}", f"{summary['prefill_step_share']:.0%}",
                 f"{summary['kernels'] / summary['steps']:.0f}", *graphs,
                 *(f"{summary['class_ms_a_step'][name]:.3f}" for name in CLASSES)]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Folders and files of a profile, and the server's process id."""

    traces: Path
    prompts: Path
    out: Path
    pid: int | None


def profile_sizes(url: str, where: Where, sizes: str) -> None:
    """Profile each size in turn, keep its summary, and print the table of them all."""
    lines = where.prompts.read_text(encoding="utf-8").splitlines()
    prompts = itertools.cycle([json.loads(line)["ids"] for line in lines if line.strip()])
    where.out.mkdir(parents=True, exist_ok=True)
    summaries = {}
    for size in map(int, sizes.split(",")):
        load = Load(url.rstrip("/"), size, prompts)
        trace, steady = asyncio.run(profile(load, where.traces, where.pid))
        summary = {"size": size, "trace": trace.name, "steady": steady}
        summary |= summarize(read_trace(trace))
        file = where.out / f"profile-{size}.json"
        file.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        summaries[size] = summary
    print(table(summaries))


def main(argv: Sequence[str] | None = None) -> None:
    """Profile a server that runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("traces", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--sizes", default="1,32,256")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pid", type=int, help="the server's, for the CPU that it uses")
    options = parser.parse_args(argv)
    where = Where(traces=options.traces, prompts=options.prompts, out=options.out, pid=options.pid)
    profile_sizes(options.url, where, options.sizes)


if __name__ == "__main__":
    main()
