"""The five clients: the arguments that give each the same load, and what its report says."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.chunk_server import MODEL
from benchmarks.instrument_truth import Figures, Method
from benchmarks.jobs import JobError

_VLLM: Final = Path(__file__).with_name("instrument_vllm.py")
_NOWHERE: Final = "http://127.0.0.1:9"  # AIPerf reads a tokenizer's folder only when "online"
_MS_PER_S: Final = 1000.0
_SURELY_S: Final = 3600.0


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
class Report:
    """What a tool says: how many requests its figures are of, and the figures.

    ``due_s`` and ``sent_s`` are its schedule and its sends, side by side on its own clock; empty
    where it writes none down. ``more`` are columns of a row that no other tool has.
    """

    count: int
    figures: Figures
    due_s: tuple[float, ...] = ()
    sent_s: tuple[float, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """One tool. ``command`` of URL, load and folder writes ``answer`` there; ``read`` reads it."""

    name: str
    command: Callable[[str, Load, Path], list[str]]
    answer: str
    read: Callable[[Any], Report]
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


def read_whet(report: Any) -> Report:
    """vLLM's keys; TTFT from the send, as the others count it, and from the schedule beside it.

    ``start_times`` are scheduled. Maxima are of its lists, which leave nothing out as warm-up.
    """
    due_s, waits_s = report["start_times"], report["queue_times"]
    longest = {
        name: max((s * _MS_PER_S for s in report[name] if s is not None), default=None)
        for name in ("ttfts", "latencies")
    }
    return Report(
        count=report["completed"],
        figures=_vllm_figures(report, "ttft_from_send")
        | {"ttft_max_ms": longest["ttfts"], "e2e_max_ms": longest["latencies"]},
        due_s=tuple(due_s),
        sent_s=tuple(at_s + wait_s for at_s, wait_s in zip(due_s, waits_s, strict=True)),
        more={
            "schedule_ttft_p50_ms": report["p50_ttft_ms"],
            "schedule_ttft_p99_ms": report["p99_ttft_ms"],
            "cut": report["run_info"]["timed_requests_before_steady"],
        },
    )


def read_vllm(report: Any) -> Report:
    """``start_times`` are sends, and what waited for a place is in ``queue_times``.

    It has both for Poisson arrivals only, and the Rust client has neither.
    """
    sent_s, waits_s = (report.get(name, ()) for name in ("start_times", "queue_times"))
    queued = report.get("p99_e2el_including_client_queue_ms")
    return Report(
        count=report["completed"],
        figures=_vllm_figures(report, "ttft")
        | {"ttft_max_ms": report["p100_ttft_ms"], "e2e_max_ms": report["p100_e2el_ms"]},
        due_s=tuple(at_s - wait_s for at_s, wait_s in zip(sent_s, waits_s, strict=False)),
        sent_s=tuple(sent_s) if waits_s else (),
        more={} if queued is None else {"queued_e2e_p99_ms": queued},
    )


def _vllm_figures(report: Any, ttft: str) -> Figures:
    words = (("ttft", ttft, (50, 99)), ("tpot", "tpot", (50, 99)), ("e2e", "e2el", (99,)))
    return {f"{own}_p{p}_ms": report[f"p{p}_{name}_ms"] for own, name, ps in words for p in ps}


def read_guidellm(report: Any) -> Report:
    """Latencies from its request's start; ``targeted_start`` is the schedule.

    Its inter-token latency is TPOT here; its ``time_per_output_token`` holds the first token. A
    worker that draws before GuideLLM has set the start puts its first request near 1970 and sends
    it at once: it is due when it was sent.
    """
    benchmark = report["benchmarks"][0]
    first, between, whole = (
        benchmark["metrics"][name]["successful"]
        for name in ("time_to_first_token_ms", "inter_token_latency_ms", "request_latency")
    )
    timings = [one["info"]["timings"] for one in benchmark["requests"]["successful"]]
    sent_s = [one["request_start"] for one in timings]
    due_s = [one["targeted_start"] or 0.0 for one in timings]
    pairs = zip(due_s, sent_s, strict=True)
    return Report(
        count=first["count"],
        figures={
            "ttft_p50_ms": first["percentiles"]["p50"],
            "ttft_p99_ms": first["percentiles"]["p99"],
            "ttft_max_ms": first["max"],
            "tpot_p50_ms": between["percentiles"]["p50"],
            "tpot_p99_ms": between["percentiles"]["p99"],
            "e2e_p99_ms": whole["percentiles"]["p99"] * _MS_PER_S,
            "e2e_max_ms": whole["max"] * _MS_PER_S,
        },
        due_s=tuple(due if at_s - due < _SURELY_S else at_s for due, at_s in pairs),
        sent_s=tuple(sent_s),
    )


def read_aiperf(report: Any) -> Report:
    """Latencies from its request's start, in ms; it writes no schedule down.

    Its inter-token latency is (latency − TTFT) / (tokens − 1) of a request, which is TPOT.
    """
    first, between = report["time_to_first_token"], report["inter_token_latency"]
    whole = report["request_latency"]
    return Report(
        count=first["count"],
        figures={
            "ttft_p50_ms": first["p50"],
            "ttft_p99_ms": first["p99"],
            "ttft_max_ms": first["max"],
            "tpot_p50_ms": between["p50"],
            "tpot_p99_ms": between["p99"],
            "e2e_p99_ms": whole["p99"],
            "e2e_max_ms": whole["max"],
        },
    )


def read_answer(client: Client, folder: Path) -> Report:
    """What the tool wrote; ``JobError`` where it is not what this version of it writes."""
    try:
        return client.read(json.loads((folder / client.answer).read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise JobError(f"{client.answer} holds no figures ({error!r})") from error
