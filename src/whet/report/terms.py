"""What the heads of tables and tiles mean, for a reader's pointer; docs/glossary.md has more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TERMS: Final[Mapping[str, str]] = {
    "TTFT p50": "Time to first token: half of the requests were faster",
    "TTFT p95": "Time to first token: 95 of 100 requests were faster",
    "TTFT p95, ms": "Time to first token: 95 of 100 requests were faster",
    "TPOT p50": "Time per output token after the first: half of the requests were faster",
    "concurrency": "Requests that the client has open at once",
    "Acceptance": "Tokens per step of a speculative server, and the share of drafts accepted",
    "Prefix hits": "Share of prompt tokens that the prefix cache answered, and the share expected",
    "Cells proved": "Loads at which the log and counters show that every feature was running",
    "Perplexity": "Change of perplexity on held-out text against the baseline",
    "KL": "Distance of the next-token distribution from the baseline's, in millinats",
    "KL p99": "The same at its 99th percentile over positions",
    "flips": "Positions whose likeliest token differs from the baseline's",
}
