"""Faults that the counters of a trial show, or ought to show and cannot; and healthy trials."""

from __future__ import annotations

from dataclasses import replace

from tests.levers.builders import DRAFT, counters, trial, workload
from tests.levers.planted import Judge, cell, contradicted, unproved
from tests.levers.recorded import scraped
from whet.core.load import Load
from whet.core.records.engine import Speculation
from whet.core.records.evidence import Verdict
from whet.core.records.load import Counters, TrialRecord

TWO_BATCHES = ((0, 5), (1, 9), (10, 12), (11, 13))
IDLE = counters(generated=5, queries=0, hits=0)


def with_names(counted: Counters, **values: float) -> Counters:
    """Samples beside the usual ones; ``lora__a`` is the gauge of adapter a."""
    names = {"started": "process_start_time_seconds"}
    more = tuple(
        (
            'vllm:lora_requests_info{running_lora_adapters="' + key[6:] + '"}'
            if key.startswith("lora__")
            else names[key],
            value,
        )
        for key, value in values.items()
    )
    return replace(counted, values=counted.values + more)


def drafted(drafts: float, tokens: float, accepted: float, **speculation: object) -> Verdict:
    """Speculation with K = 4 that counted this much."""
    after = counters(drafts=drafts, drafted=tokens, accepted=accepted, generated=40)
    before = counters(drafts=0, drafted=0, accepted=0, generated=0)
    asked = replace(DRAFT, **speculation)  # type: ignore[arg-type]
    return cell("speculation", trial(before, after), speculation=asked)


def cached(
    hits: float, queries: float = 1000, *, on: bool = True, expected: float = 0.6
) -> Verdict:
    before = counters(queries=0, hits=0, generated=0)
    after = counters(queries=queries, hits=hits, generated=40)
    facts = workload(expected)
    return cell("prefix_cache", trial(before, after), facts=facts, prefix_cache=on)


def adapters(
    before: Counters, after: Counters, *names: str, output: str = "lora_requests"
) -> Verdict:
    return cell(output, trial(before, after), loras=tuple((name, "/model") for name in names))


def failed(before: Counters, after: Counters) -> TrialRecord:
    """A trial whose requests were all refused."""
    made = trial(before, after)
    refused = replace(made.requests[0], output_tokens=None, error="http_404")
    return replace(made, requests=(refused,) * len(made.requests))


def batches(*sent_ended: tuple[int, int], loop: str = "static") -> Verdict:
    """Batches of two whose requests left and ended at these times."""
    plain = trial(None, None)
    events = [
        replace(plain.requests[0], index=i, sent_ns=sent, ended_ns=ended)
        for i, (sent, ended) in enumerate(sent_ended)
    ]
    made = replace(plain, load=Load.at(2), loop=loop, requests=tuple(events))
    return cell("batching", made, batching="static")


CELLS = [
    contradicted("nothing drafted", "nothing was drafted", lambda: drafted(0, 0, 0)),
    contradicted("a draft that never accepts", "vocabulary", lambda: drafted(252, 1008, 0)),
    unproved("a draft that accepts by chance", "pays nothing", lambda: drafted(252, 1008, 4)),
    contradicted("more draft tokens than K", "more than K=4", lambda: drafted(100, 500, 90)),
    contradicted("more accepted than K", "more than K=4", lambda: drafted(100, 400, 401)),
    contradicted(
        "a simulated acceptance length that is missed",
        "3.0 was to be simulated",
        lambda: drafted(100, 400, 100, options=(("synthetic_acceptance_length", 3.0),)),
    ),
    unproved(
        "speculation counters renamed",
        "missing, renamed",
        lambda: cell(
            "speculation",
            trial(counters(generated=0), counters(generated=40)),
            speculation=DRAFT,
        ),
    ),
    unproved(
        "counters reset in the window",
        "went backwards",
        lambda: cell(
            "speculation",
            trial(
                counters(drafts=90, drafted=360, accepted=80, generated=0),
                counters(drafts=30, drafted=120, accepted=20, generated=40),
            ),
            speculation=DRAFT,
        ),
    ),
    unproved(
        "a restart that counted past the old value",
        "another process's",
        lambda: cell(
            "speculation",
            trial(
                with_names(counters(drafts=9, drafted=36, accepted=8, generated=0), started=1),
                with_names(counters(drafts=90, drafted=360, accepted=80, generated=40), started=2),
            ),
            speculation=DRAFT,
        ),
    ),
    unproved(
        "a counter that appears after the warm-up",
        "missing, renamed",
        lambda: cell(
            "speculation",
            trial(
                counters(generated=0),
                counters(drafts=90, drafted=360, accepted=80, generated=40),
            ),
            speculation=DRAFT,
        ),
    ),
    contradicted(
        "speculation on where the variant says off",
        "drafts were made",
        lambda: cell(
            "speculation",
            trial(counters(drafts=0, generated=0), counters(drafts=9, generated=40)),
        ),
    ),
    contradicted("a workload that does not hit", "under the bound", lambda: cached(0)),
    unproved("a workload that cannot hit", "cannot hit", lambda: cached(0, expected=0.0)),
    contradicted("an earlier trial's entries", "an earlier trial's entries", lambda: cached(900)),
    contradicted("a prefix cache that looks nothing up", "no token", lambda: cached(0, 0)),
    contradicted("caching on where the variant says off", "looked up", lambda: cached(0, on=False)),
    unproved(
        "a prefix-cache metric renamed by a proxy",
        "vllm:prefix_cache_hits_total is missing",
        lambda: cell(
            "prefix_cache",
            trial(
                scraped("cpu_metrics_before.txt", ("vllm:prefix_cache_hits", "gateway:hits")),
                scraped("cpu_metrics_after.txt", ("vllm:prefix_cache_hits", "gateway:hits")),
                requests=4,
            ),
            prefix_cache=True,
        ),
    ),
    unproved(
        "a query metric dropped where the variant says off",
        "vllm:prefix_cache_queries_total is missing",
        lambda: cell(
            "prefix_cache",
            trial(
                scraped("cpu_metrics_before.txt", ("vllm:prefix_cache_queries", "gateway:q")),
                scraped("cpu_metrics_after.txt", ("vllm:prefix_cache_queries", "gateway:q")),
                requests=4,
            ),
        ),
    ),
    unproved(
        "the metrics of a server that stands idle",
        "another server answered",
        lambda: cell("prefix_cache", trial(IDLE, IDLE)),
    ),
    *(
        unproved(
            f"a window in which every request failed, with {kind} off",
            "no token generated",
            lambda kind=kind: cell(kind, failed(IDLE, IDLE)),
        )
        for kind in ("speculation", "prefix_cache")
    ),
    unproved(
        "the metrics of one of two servers",
        "the client received 40",
        lambda: cell(
            "speculation",
            trial(counters(generated=0), counters(generated=20)),
        ),
    ),
    contradicted(
        "an adapter that no request asked for",
        "no request ran with billing",
        lambda: adapters(
            with_names(IDLE, lora__=1),
            with_names(counters(generated=45), lora__=2),
            "billing",
        ),
    ),
    contradicted(
        "one of two adapters idle",
        "no request ran with sales",
        lambda: adapters(
            with_names(IDLE, lora__billing=1, lora__sales=1),
            with_names(counters(generated=45), lora__billing=2, lora__sales=1),
            "billing",
            "sales",
        ),
    ),
    unproved(
        "the adapters' gauge is missing",
        "no data",
        lambda: adapters(IDLE, counters(generated=45), "billing"),
    ),
    contradicted(
        "static batches measured in a closed loop",
        "a loop that is closed",
        lambda: batches(*TWO_BATCHES, loop="closed"),
    ),
    contradicted(
        "static batches that do not wait",
        "1 requests were sent before",
        lambda: batches((0, 5), (1, 9), (6, 12), (11, 13)),
    ),
]

TWINS: dict[str, Judge] = {
    "requests to adapters": lambda: adapters(
        with_names(IDLE, lora__billing=1),
        with_names(counters(generated=45), lora__billing=2),
        "billing",
    ),
    "speculation": lambda: drafted(100, 400, 150),
    "speculation simulated": lambda: drafted(
        100, 400, 196, options=(("synthetic_acceptance_length", 3.0),)
    ),
    "speculation without a draft model, however rarely it hits": lambda: cell(
        "speculation",
        trial(
            counters(drafts=0, drafted=0, accepted=0, generated=0),
            counters(drafts=100, drafted=400, accepted=2, generated=40),
        ),
        speculation=Speculation(method="ngram", num_tokens=4, draft_path=None),
    ),
    "no speculation": lambda: cell(
        "speculation", trial(counters(generated=0), counters(generated=40))
    ),
    "prefix cache": lambda: cached(600),
    "no prefix cache": lambda: cached(0, 0, on=False),
    "static batches": lambda: batches(*TWO_BATCHES),
}
