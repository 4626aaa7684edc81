"""The same real vLLM server, measured by ``whet bench`` and ``vllm bench serve`` in turn.

One server (the demo target, float32, without a prefix cache) is measured by one, then by the
other, and again: closed loops of 1 (32 requests) and of 8 (96), 128 tokens in and 32 out,
end-of-sequence ignored, temperature 0, prompts of their own for each run (a seed a repeat).

With 8 in flight and equal lengths it matters how requests fall together: where all eight begin and
end at once, no prefill falls into another's decode, and where they are spread, each one does. So
that line can differ from run to run by more than the clients do; with 1 in flight nothing falls
together, and the line compares the clients.

Like for like: TTFT and E2E count from the send, as vLLM counts them; TPOT is (last − first) /
(tokens − 1) of a request in both; medians are over all timed requests. whet's own headline leaves
out what it takes for warm-up, and is in runs.csv as ``reported``. Not equal: whet sends
token ids and vLLM text, so the server has a little more to do for vLLM's before its first token.

Client and server share the machine, so a client's own work slows the server that it measures: each
run is held against the means of the engine's own histograms during that very run. Where a tool
agrees with these and two tools do not with each other, the server was slower under one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.instrument_rows import AgreementRow
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_tools import Client, Load, read_answer
from whet.client import get_text, scrape
from whet.core.errors import WhetError
from whet.core.provenance import now
from whet.core.records import Counters, Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.engines import get_engine

TOOLS: Final = ("whet", "vllm bench serve", "vllm-rs bench serve")
_P: Final = ("p50", "p99")
_MS_PER_S: Final = 1000.0
_READY_S: Final = 600.0


def loads(*, quick: bool) -> list[Load]:
    """The closed loops that both run."""
    counts = ((1, 8, 2), (8, 16, 8)) if quick else ((1, 32, 4), (8, 96, 16))
    return [
        Load(in_flight=slots, requests=requests, tokens=32, warmup=warmup, input_tokens=128)
        for slots, requests, warmup in counts
    ]


def agreement_rows(context: Context) -> Iterator[AgreementRow]:
    """``repeats`` of both on one server; where it does not start, a row a tool says so."""
    clients = [client for client in context.clients if client.name in TOOLS]
    load_cases = loads(quick=context.quick)

    def row_of(client: Client, repeat: int, one: Load) -> AgreementRow:
        return AgreementRow(
            tool=client.name,
            table="agreement",
            repeat=repeat,
            in_flight=one.in_flight,
            requests=one.requests,
            pieces=one.tokens,
            version=context.versions.get(client.name),
            started_at=now(),
        )

    try:
        with vllm_server(context.folder.with_name("engine.log")) as url:
            name = json.loads(get_text(url, "/v1/models"))["data"][0]["id"]
            for repeat, one, client in product(range(context.repeats), load_cases, clients):
                seeded = replace(one, seed=repeat + 1, model=name)
                yield attempt(row_of(client, repeat, one), _measure(context, client, url, seeded))
    except (WhetError, OSError) as error:
        for client in clients:
            yield replace(row_of(client, 0, load_cases[0]), failure=f"no server: {error}")


@contextmanager
def vllm_server(log: Path) -> Iterator[str]:
    """vLLM of this interpreter with the demo target; yields its URL."""
    variant = Variant(
        name="fp16",
        weights="fp16",
        scheme="16bit",
        model_path=str(pair_paths()[0]),
        speculation=None,
        prefix_cache=False,
        engine_args=(("max_model_len", 1024), ("enforce_eager", True), ("dtype", "float32")),
        env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
    )
    engine = get_engine("vllm")
    resolved = engine.resolve(variant, EngineSpec(ready_timeout_s=_READY_S))
    with engine.serve(resolved, log=log) as server:
        yield server.base_url


def _measure(
    context: Context, client: Client, url: str, load: Load
) -> Callable[[AgreementRow], AgreementRow]:
    def measure(row: AgreementRow) -> AgreementRow:
        before = scrape(url)
        spent = context.run(client, url, load)
        after = scrape(url)
        answer, report = read_answer(client, context.folder), context.report(client)
        return replace(
            row,
            **(like_for_like(report) if client.name == "whet" else _medians(report)),
            counted=report["completed"],
            reported_ttft_p50_ms=answer.figures.ttft_p50_ms,
            reported_tpot_p50_ms=answer.figures.tpot_p50_ms,
            server_ttft_mean_ms=server_mean_ms("time_to_first_token", before, after),
            server_tpot_mean_ms=server_mean_ms("request_time_per_output_token", before, after),
            output_tokens_per_s=report["output_throughput"],
            complaint=spent.complaint,
        )

    return measure


def server_mean_ms(name: str, before: Counters, after: Counters) -> float | None:
    """The engine's own mean of a histogram of seconds between two scrapes."""
    ends = [
        (one.get(f"vllm:{name}_seconds_sum"), one.get(f"vllm:{name}_seconds_count"))
        for one in (before, after)
    ]
    (sum_before, count_before), (sum_after, count_after) = ends
    if sum_after is None or count_after is None:
        return None
    count = count_after - (count_before or 0)
    return (sum_after - (sum_before or 0)) / count * _MS_PER_S if count else None


def _medians(report: Mapping[str, Any]) -> dict[str, float]:
    names = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
    medians = {
        f"{ours}_{p}_ms": report[f"{p}_{name}_ms"] for ours, name in names.items() for p in _P
    }
    return medians | {f"{name}_mean_ms": report[f"mean_{name}_ms"] for name in ("ttft", "tpot")}


def like_for_like(report: Mapping[str, Any]) -> dict[str, float | None]:
    """whet's figures over every timed request, from the send; None of none."""
    names = ("ttfts", "queue_times", "latencies", "output_lens")
    first, between, whole = [], [], []
    for ttft_s, wait_s, e2e_s, tokens in zip(*(report[name] for name in names), strict=True):
        if ttft_s is None:
            continue
        first.append((ttft_s - wait_s) * _MS_PER_S)
        whole.append((e2e_s - wait_s) * _MS_PER_S)
        if tokens is not None and tokens > 1:
            between.append((e2e_s - ttft_s) / (tokens - 1) * _MS_PER_S)
    values = {"ttft": first, "tpot": between, "e2e": whole}
    figures = {
        f"{name}_{p}_ms": float(np.percentile(samples, float(p[1:]))) if samples else None
        for name, samples in values.items()
        for p in _P
    }
    means = {"ttft_mean_ms": first, "tpot_mean_ms": between}
    return figures | {name: float(np.mean(of)) if of else None for name, of in means.items()}
