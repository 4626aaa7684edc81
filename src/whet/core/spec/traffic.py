"""Workload, load, quality gate and objective of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from whet.core.load import Load
from whet.core.records.engine import Scalar
from whet.core.spec.base import File, Positive, Share, Strict, Whole

_MAX_TOP_LOGPROBS: Final = 20
_MAX_BATCH_SIZE: Final = 65_535
"""A request in flight takes a port of the client."""
_MAX_TRIALS: Final = 1000
_MAX_REQUESTS: Final = 10**6


class WorkloadSpec(Strict):
    """Requests generated from the built-in texts: shared and unique prefixes, short and long.

    Answers have the lengths that the first server, the baseline's, gives them without a limit but
    ``max_output_tokens`` (``output_lengths: natural``), or a fixed share of the prompt's
    (``ratio``). Every variant then writes that many tokens. ``temperature`` is that of the timed
    answers alone: a draft's acceptance falls with it, and so do the gains of speculation.
    """

    shared_prefix_share: Share = 0.7
    long_system_share: Share = 0.5
    shared_prefixes: Positive = 4
    output_lengths: Literal["natural", "ratio"] = "natural"
    input_output_ratio: Annotated[float, Field(gt=0)] = 4.0
    min_output_tokens: Positive = 16
    max_output_tokens: Positive = 256
    max_input_tokens: Positive | None = None
    long_prompts: Share = 0.0
    long_prompt_tokens: Positive = 4096
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Whole = 0


class TrafficSpec(Strict):
    """The user's own request log; ``traffic: log.jsonl`` is short for its ``log`` alone.

    Its conversations are sampled by ``seed`` and divided: one part calibrates the quantizer, one is
    the gate's text, one is the load and one the confirmation's. Answers are as long as the log's
    (``logged``), or as the first server, the baseline's, gives them (``natural``), at most
    ``max_output_tokens``; every variant then writes that many tokens. Prompts and answers stay out
    of reports and deployment files unless ``keep_prompts``.
    """

    log: File
    seed: Whole = 0
    keep_prompts: bool = False
    answers: Literal["logged", "natural"] = "logged"
    max_output_tokens: Positive = 256

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"log": data} if isinstance(data, str | Path) else data


REMOVED_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "quality.next_schemes": "quality.next_schemes is gone; remove the key: preset: schemes "
        "measures every scheme",
        "quality.protocol": "quality.protocol is gone; remove the key: whole documents are scored",
        "quality.structured": "quality.structured is gone; remove the key: the check changed no "
        "verdict",
        "load.batch_sizes": "load.batch_sizes is load.concurrency now; rename the key",
        "load.repeat_baseline": "load.repeat_baseline is gone; remove the key: every configuration "
        "is started load.trials times, which shows the noise",
        "load.precision": "load.precision is gone; remove the key: fresh starts are added until "
        "the difference is shown, load.max_starts of them at most",
        "load.together": "load.together is gone; remove the key: a search starts servers together "
        "by itself, and servers of listed variants start one after the other",
        "load.head_of_line": "load.head_of_line is gone; set workload.long_prompts, the share of "
        "long prompts, and read stall_p95_ms of each cell",
        "engine.program": "engine.program is gone with llama.cpp; remove the key: a server that "
        "you start yourself is measured with engine: {name: openai, url: …}",
        "workload.pool": "workload.pool is gone; remove the key and set traffic: log.jsonl, your "
        "own request log",
    }
)
"""Keys that a spec had, and what to do about each."""


class LoadSpec(Strict):
    """The load of each cell, requests per trial, trials per cell.

    ``concurrency`` keep so many requests in flight (a closed loop). ``rates`` send so many a second
    for ``seconds`` to one server: at gaps of the ``traffic`` log where it has times, else as a
    Poisson process, or with a ``burstiness``;
    ``demand_rps`` is what the whole deployment has to take, the largest rate by default.
    ``find: max_rate`` searches each variant's highest rate that meets the objective, and measures
    there. ``trace`` replays the first ``seconds`` of a request log at its own times, or at the
    speeds that ``find`` asks for.
    ``order: interleaved`` starts a server for every trial and goes through the variants forwards
    and backwards by turns (ABBA), so that the drift of the machine falls on all alike; ``blocks``
    measures all trials of a variant on one start, so nothing has an interval. ``confirm`` measures
    the cheapest variant and the default again, on fresh traffic and two fresh starts each; more,
    two by two, until their difference is shown or cannot be by ``max_starts`` of each.
    """

    order: Literal["blocks", "interleaved"] = "interleaved"
    concurrency: Annotated[
        tuple[Annotated[Positive, Field(le=_MAX_BATCH_SIZE)], ...], Field(min_length=1)
    ] = (1, 4, 8, 16, 32)
    rates: tuple[Annotated[float, Field(gt=0)], ...] = ()
    trace: File | None = None
    find: Literal["max_rate"] | None = None
    demand_rps: Annotated[float, Field(gt=0)] | None = None
    burstiness: Annotated[float, Field(gt=0)] | None = None
    seconds: Annotated[float, Field(gt=0)] = 60.0
    trials: Annotated[Positive, Field(le=_MAX_TRIALS)] = 2
    min_requests: Positive = 16
    requests_per_slot: Positive = 10
    warmup_requests: Annotated[Whole, Field(ge=0)] = 20
    request_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    confirm: bool = True
    max_starts: Annotated[int, Field(ge=2, le=_MAX_TRIALS)] = 10

    @model_validator(mode="after")
    def _one_kind_of_load(self) -> LoadSpec:
        most = max(map(self.requests, self.points), default=0)
        if most > _MAX_REQUESTS:
            raise ValueError(
                f"a trial of {most:,} requests is more than {_MAX_REQUESTS:,}; lower "
                "requests_per_slot, min_requests, or rates and seconds"
            )
        default = type(self).model_fields["concurrency"].default
        kinds = {
            "concurrency": self.concurrency != default,
            "rates": bool(self.rates),
            "find" if self.trace is None else "trace": bool(self.find or self.trace),
        }
        given = [name for name, present in kinds.items() if present]
        if len(given) > 1:
            raise ValueError(f"load has {' and '.join(given)}; give one of them")
        if self.find and not self.trace and self.demand_rps is None:
            raise ValueError(
                "load.find needs load.demand_rps: how many requests a second all servers take"
            )
        if self.demand_rps is not None and not (self.rates or self.find or self.trace):
            raise ValueError(
                "load.demand_rps needs load.rates, how many requests a second one server is "
                "measured at, or load.find: max_rate"
            )
        return self

    @property
    def points(self) -> tuple[Load, ...]:
        """The loads that are measured; none where a trace or a search sets them."""
        if self.find or self.trace:
            return ()
        return tuple(map(Load.rate, self.rates)) or tuple(map(Load.at, self.concurrency))

    @property
    def demand(self) -> float | None:
        """Requests a second that the deployment has to take; None for a closed loop.

        None too for a trace without ``demand_rps``, which has its own rate.
        """
        return self.demand_rps or max(self.rates, default=None)

    def requests(self, point: Load) -> int:
        """Timed requests of one trial at ``point``."""
        wanted = (self.seconds if point.is_open else self.requests_per_slot) * point.value
        return max(self.min_requests, math.ceil(wanted))


class QualitySpec(Strict):
    """Held-out text and tasks that a variant must pass to be recommended.

    ``top_logprobs`` likeliest tokens are requested at every held-out position (0: no distances).
    ``lossless_prompts`` are continued by plain and speculative servers, and answers to
    ``golden_probes`` are stored for a monitor; 0 leaves either out. ``sampled: false`` compares
    greedy answers only. ``chat_template_kwargs`` replace those of ``model`` in the gate, key by
    key. Where neither turns thinking on, it is off in the gate. ``thinking_tokens`` are added to
    the answer of a model that reasons first; the text after its reasoning is scored.
    """

    heldout: File | None = None
    tasks: File | None = None
    max_documents: Positive = 200
    max_tasks: Annotated[Whole, Field(ge=0)] = 300
    max_tokens: Positive = 1024
    concurrency: Positive = 16
    top_logprobs: Annotated[Whole, Field(ge=0)] = 5
    lossless_prompts: Annotated[int, Field(ge=0)] = 16
    sampled: bool = True
    golden_probes: Annotated[int, Field(ge=0)] = 16
    chat_template_kwargs: dict[str, Scalar] = {}
    thinking_tokens: Annotated[Whole, Field(ge=0)] = 2048

    @field_validator("top_logprobs")
    @classmethod
    def _within_the_engines_limit(cls, value: int) -> int:
        if value > _MAX_TOP_LOGPROBS:
            raise ValueError(
                f"at most {_MAX_TOP_LOGPROBS} likeliest tokens per position can be requested "
                "(vLLM's --max-logprobs by default); lower it"
            )
        return value


class ObjectiveSpec(Strict):
    """Axes of the decision matrix, and the point that the recommendation is made for.

    Latencies are limits of the p95. ``min_acceptance_rate`` (accepted ÷ drafted tokens) holds for
    variants that speculate, ``min_prefix_hit_rate`` for those with a prefix cache.
    """

    ttft_ms: Annotated[tuple[float, ...], Field(min_length=1)] = (200.0, 500.0, 1000.0)
    quality: Annotated[tuple[float, ...], Field(min_length=1)] = (0.01, 0.02, 0.05)
    recommend_ttft_ms: float = 500.0
    recommend_quality: float = 0.01
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    burst_ttft_ms: Annotated[float, Field(gt=0)] | None = None
    min_acceptance_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    min_prefix_hit_rate: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _positive(self) -> ObjectiveSpec:
        if any(value <= 0 or math.isinf(value) for value in (*self.ttft_ms, *self.quality)):
            raise ValueError("targets and tolerances must be above 0")
        if self.recommend_ttft_ms not in self.ttft_ms:
            raise ValueError(f"recommend_ttft_ms must be one of ttft_ms {list(self.ttft_ms)}")
        if self.recommend_quality not in self.quality:
            raise ValueError(f"recommend_quality must be one of quality {list(self.quality)}")
        return self
