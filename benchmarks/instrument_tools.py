"""The five clients: the arguments that give each the same load, and where each puts its figures."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.chunk_server import MODEL
from benchmarks.instrument_truth import Figures, Method
from benchmarks.jobs import ROOT, JobError, last_words

_SAMPLE_S: Final = 0.25
_VLLM: Final = Path(__file__).with_name("instrument_vllm.py")
_NOWHERE: Final = "http://127.0.0.1:9"  # AIPerf reads a tokenizer's folder only when "online"


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """``requests`` of ``tokens`` pieces after ``warmup`` untimed ones.

    ``burst`` sends every request at once; otherwise ``in_flight`` are kept in flight. With
    ``rate_rps`` they leave at Poisson times instead, and ``in_flight`` caps them, if it is not 0.
    """

    in_flight: int
    requests: int
    tokens: int
    warmup: int
    burst: bool = False
    input_tokens: int = 32
    rate_rps: float | None = None
    seed: int = 0

    @property
    def cap(self) -> int | None:
        """The most that may be in flight, None for no bound."""
        return None if self.burst or not self.in_flight else self.in_flight


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """What a tool says: how many requests its figures are of, and the figures.

    ``from_schedule`` is this project's own headline TTFT, which counts from the schedule.
    """

    count: int
    figures: Figures
    from_schedule: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """A process tree: CPU of all its processes, and the sampled peak of its memory (PSS)."""

    cpu_s: float
    total_s: float
    peak_bytes: int | None
    complaint: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """One tool. ``command`` of URL, load and folder writes ``answer`` there; ``read`` reads it."""

    name: str
    command: Callable[[str, Load, Path], list[str]]
    answer: str
    read: Callable[[Mapping[str, Any]], Reported]
    version: tuple[str, ...]
    percentile: Method = "linear"
    online: bool = False

    def environment(self) -> dict[str, str]:
        """This process' variables, without a network."""
        env = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"}
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            env.pop(name, None)
        if self.name != "whet":
            env.pop("PYTHONPATH", None)
        return env | ({"HF_ENDPOINT": _NOWHERE} if self.online else {"HF_HUB_OFFLINE": "1"})


def whet_client(tokenizer: Path) -> Client:
    """This project's ``whet bench``."""

    def command(url: str, load: Load, folder: Path) -> list[str]:
        how = ["--request-rate", "inf"] if load.burst else []
        how += ["--request-rate", f"{load.rate_rps:g}"] if load.rate_rps else []
        how += ["--max-concurrency", str(load.cap)] if load.cap else []
        return [
            *(sys.executable, "-m", "whet", "bench", url, "--tokenizer", str(tokenizer), *how),
            *("--num-prompts", str(load.requests), "--num-warmups", str(load.warmup)),
            *("--isl", str(load.input_tokens), "--osl", str(load.tokens)),
            *("--metric-percentiles", "50,99", "--save-result", "-o", str(folder)),
            *("--result-filename", "whet.json", "--model", MODEL, "--seed", str(load.seed)),
        ]

    version = (sys.executable, "-c", "import whet; print(whet.__version__)")
    return Client(name="whet", command=command, answer="whet.json", read=read_whet, version=version)


def vllm_client(python: str, tokenizer: Path) -> Client:
    """``vllm bench serve`` by the interpreter that has vLLM."""

    def command(url: str, load: Load, folder: Path) -> list[str]:
        metrics = "ttft,tpot,itl,e2el,client_queue_time,e2el_including_client_queue"
        return [python, "-P", str(_VLLM), *_vllm_words(url, load, folder, tokenizer, metrics)]

    version = (python, "-P", "-c", "import vllm; print(vllm.__version__)")
    return Client(
        name="vllm bench serve",
        command=command,
        answer="vllm.json",
        read=read_vllm,
        version=version,
    )


def rust_client(program: str, tokenizer: Path) -> Client:
    """``vllm-rs bench serve``, the Rust client in vLLM's wheel."""

    def command(url: str, load: Load, folder: Path) -> list[str]:
        words = _vllm_words(url, load, folder, tokenizer, "ttft,tpot,itl,e2el")
        return [program, "bench", "serve", *words]

    return Client(
        name="vllm-rs bench serve",
        command=command,
        answer="vllm.json",
        read=read_vllm,
        version=(program, "--version"),
    )


def _vllm_words(url: str, load: Load, folder: Path, tokenizer: Path, metrics: str) -> list[str]:
    """The flags that both of vLLM's clients have."""
    how = ["--max-concurrency", str(load.cap)] if load.cap else []
    if load.rate_rps:
        how += ["--request-rate", f"{load.rate_rps:g}", "--burstiness", "1", "--save-detailed"]
    return [
        *("--backend", "openai", "--base-url", url, *how),
        *("--model", MODEL, "--tokenizer", str(tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(load.input_tokens)),
        *("--random-output-len", str(load.tokens), "--ignore-eos"),
        *("--num-prompts", str(load.requests), "--num-warmups", str(load.warmup)),
        *("--ready-check-timeout-sec", "0", "--percentile-metrics", metrics),
        *("--metric-percentiles", "50,99,100", "--save-result", "--disable-tqdm"),
        *("--temperature", "0", "--seed", str(load.seed)),
        *("--result-dir", str(folder), "--result-filename", "vllm.json"),
    ]


def guidellm_client(program: str, tokenizer: Path) -> Client:
    """``guidellm run``; its percentiles are members of the sample."""

    def command(url: str, load: Load, folder: Path) -> list[str]:
        warm: dict[str, Any] = {"warmup": {"value": load.warmup, "mode": "requests"}}
        profile: dict[str, Any] = {"kind": "concurrent", "streams": load.in_flight}
        if load.rate_rps:
            cap = {"max_concurrency": load.cap} if load.cap else {}
            profile = {"kind": "poisson", "rate": [load.rate_rps]} | cap
        if not load.burst and load.warmup:
            profile |= warm
        sent = load.requests + (0 if load.burst else load.warmup)
        lengths = f"prompt_tokens={load.input_tokens},output_tokens={load.tokens}"
        backend = f"kind=openai_http,target={url},request_format=/v1/completions,model={MODEL}"
        return [
            *(program, "run", "--backend", backend, "--profile", json.dumps(profile)),
            *("--constraint", f"kind=max_requests,count={sent}"),
            *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
            *("--data", f"kind=synthetic_text,{lengths}"),
            *("--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-console"),
        ]

    return Client(
        name="guidellm",
        command=command,
        answer="guidellm.json",
        read=read_guidellm,
        version=(program, "--version"),
        percentile="inverted_cdf",
    )


def aiperf_client(program: str, tokenizer: Path) -> Client:
    """``aiperf profile``, set to use the server's count of tokens as the others do."""

    def command(url: str, load: Load, folder: Path) -> list[str]:
        how = ["--warmup-request-count", str(load.warmup)] if load.warmup else []
        how += ["--concurrency", str(load.in_flight)] if load.in_flight else []
        if load.rate_rps:
            how += ["--request-rate", f"{load.rate_rps:g}", "--request-rate-mode", "poisson"]
        return [
            *(program, "profile", "-m", MODEL, "--url", url, "--endpoint-type", "completions"),
            *("--streaming", "--tokenizer", str(tokenizer), "--use-server-token-count"),
            *("--request-count", str(load.requests), *how),
            *("--isl", str(load.input_tokens), "--osl", str(load.tokens)),
            *("--extra-inputs", "ignore_eos:true", "--export-level", "summary", "--ui", "none"),
            *("--no-server-metrics", "--no-gpu-telemetry", "--output-artifact-dir", str(folder)),
        ]

    return Client(
        name="aiperf",
        command=command,
        answer="profile_export_aiperf.json",
        read=read_aiperf,
        version=(program, "--version"),
        online=True,
    )


def read_whet(report: Mapping[str, Any]) -> Reported:
    """vLLM's keys; TTFT from the send, as the others count it."""
    schedule = (report["p50_ttft_ms"], report["p99_ttft_ms"])
    return replace(_read_vllm_keys(report, "ttft_from_send"), from_schedule=schedule)


def read_vllm(report: Mapping[str, Any]) -> Reported:
    """The summary of ``--save-result``."""
    return _read_vllm_keys(report, "ttft")


def _read_vllm_keys(report: Mapping[str, Any], ttft: str) -> Reported:
    return Reported(
        count=report["completed"],
        figures=Figures(
            ttft_p50_ms=report[f"p50_{ttft}_ms"],
            ttft_p99_ms=report[f"p99_{ttft}_ms"],
            tpot_p50_ms=report["p50_tpot_ms"],
            tpot_p99_ms=report["p99_tpot_ms"],
        ),
    )


def read_guidellm(report: Mapping[str, Any]) -> Reported:
    """Its inter-token latency is TPOT here; its ``time_per_output_token`` holds the first token."""
    metrics = report["benchmarks"][0]["metrics"]
    first = metrics["time_to_first_token_ms"]["successful"]
    between = metrics["inter_token_latency_ms"]["successful"]
    return Reported(
        count=first["count"],
        figures=Figures(
            ttft_p50_ms=first["percentiles"]["p50"],
            ttft_p99_ms=first["percentiles"]["p99"],
            tpot_p50_ms=between["percentiles"]["p50"],
            tpot_p99_ms=between["percentiles"]["p99"],
        ),
    )


def read_aiperf(report: Mapping[str, Any]) -> Reported:
    """Its inter-token latency is (latency − TTFT) / (tokens − 1) of a request, which is TPOT."""
    first, between = report["time_to_first_token"], report["inter_token_latency"]
    return Reported(
        count=first["count"],
        figures=Figures(
            ttft_p50_ms=first["p50"],
            ttft_p99_ms=first["p99"],
            tpot_p50_ms=between["p50"],
            tpot_p99_ms=between["p99"],
        ),
    )


def read_answer(client: Client, folder: Path) -> Reported:
    """What the tool wrote; ``JobError`` where it is not what this version of it writes."""
    try:
        return client.read(json.loads((folder / client.answer).read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise JobError(f"{client.answer} holds no figures ({error!r})") from error


def run_client(
    client: Client, command: list[str], folder: Path, *, limit_s: float, memory: bool
) -> Spent:
    """Run to the end. Raises ``JobError`` with the tool's last words where it wrote no answer.

    A tool that wrote its figures and then ended in protest keeps them; ``complaint`` is what it
    said. CPU is of every process that was waited for, so no other child may end meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.monotonic()
    with log.open("w") as stream:
        try:
            process = subprocess.Popen(
                command,
                env=client.environment(),
                cwd=ROOT if client.name == "whet" else folder,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise JobError(str(error)) from error
        with _Memory(process.pid, watch=memory) as meter:
            try:
                process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired as error:
                _stop(process)
                raise JobError(f"stopped after {limit_s:g} s") from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    words_of_log = last_words(log.read_text(encoding="utf-8", errors="replace"))
    words = (
        f"it ended with code {process.returncode}: {words_of_log}" if process.returncode else None
    )
    if not (folder / client.answer).is_file():
        raise JobError(words or "it wrote no figures")
    return Spent(
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        total_s=time.monotonic() - started_s,
        peak_bytes=meter.peak_bytes,
        complaint=words,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole tree: a tool's workers outlive it otherwise."""
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait()


class _Memory:
    """Peak of the proportional set size of a process tree: shared pages count once."""

    def __init__(self, pid: int, *, watch: bool) -> None:
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._watch = watch
        self._peak = 0

    @property
    def peak_bytes(self) -> int | None:
        """None where nothing was watched or seen."""
        return self._peak or None

    def __enter__(self) -> _Memory:
        if self._watch:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._watch:
            self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            self._peak = max(self._peak, sum(map(_pss_bytes, tree)))


def _pss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0
