"""Options of ``whet bench``, under the names of ``vllm bench serve`` where it has them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.types import PositiveFloat, PositiveInt
from cyclopts.validators import Number

from whet.core.units import TimeUnit

Count = Annotated[int, Parameter(validator=Number(gte=0))]
Form = Literal["ids", "text", "chat"]


@Parameter(name="*", group=Group.create_ordered("Server"))
@dataclass(frozen=True, kw_only=True, slots=True)
class ServerOptions:
    """Where the load goes."""

    model: str | None = None
    """Model name on the server. Default: the only one it serves."""
    tokenizer: str | None = None
    """Tokenizer folder or hub id. Default: as reported by the server."""
    api_key: str | None = None
    """API key. Default: the variable OPENAI_API_KEY."""
    header: Annotated[tuple[str, ...], Parameter(name="--header")] = ()
    """Extra HTTP header as KEY=VALUE. Repeatable."""
    insecure: bool = False
    """Do not verify the server's TLS certificate."""
    backend: Literal["vllm", "openai", "openai-chat"] | None = None
    """vllm and openai send to /v1/completions, openai-chat to /v1/chat/completions."""
    form: Form = "ids"
    """Form of the prompts: token ids, text, or chat messages."""
    timeout_s: PositiveFloat = 600.0
    """Seconds until a request counts as failed."""


@Parameter(name="*", group=Group.create_ordered("Load"))
@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """How many requests are sent, and when."""

    num_prompts: PositiveInt | None = None
    """Requests per run. Default: 200, or a whole trace."""
    request_rate: float | None = None
    """Requests per second, open loop; inf sends all at once. Default: a closed loop."""
    max_concurrency: Annotated[
        PositiveInt | None, Parameter(name=["--max-concurrency", "--concurrency"])
    ] = None
    """Requests in flight: the size of a closed loop (default: 1), or the cap of an open one."""
    burstiness: float = 1.0
    """Shape of the arrivals at --request-rate: 1 is Poisson, below 1 burstier, inf equal gaps."""
    num_warmups: Count = 20
    """Requests sent before the measurement."""
    num_runs: PositiveInt | None = None
    """Runs, each with fresh prompts. Default: 1, or 4 of each server with --against."""
    workers: PositiveInt | None = None
    """Client processes. Default: as many as the warm-up shows to be needed."""
    seed: Count = 0
    """Seed of prompts and arrivals."""


@Parameter(name="*", group=Group.create_ordered("Synthetic prompts"))
@dataclass(frozen=True, kw_only=True, slots=True)
class PromptOptions:
    """The prompts that are made."""

    input_len: Annotated[
        PositiveInt | None, Parameter(name=["--random-input-len", "--input-len", "--isl"])
    ] = None
    """Input tokens per request, after any shared prefix. Default: 512."""
    output_len: Annotated[
        PositiveInt | None, Parameter(name=["--random-output-len", "--output-len", "--osl"])
    ] = None
    """Output tokens per request. Overrides a dataset's own lengths. Default: 128."""
    random_range_ratio: float = 0.0
    """Lengths are uniform within ± this share of the input and output length."""
    prefixes: Count | None = None
    """Number of shared prefixes. Default: 1 with --prefix-len, else 0."""
    prefix_len: Annotated[
        PositiveInt | None, Parameter(name=["--random-prefix-len", "--prefix-len"])
    ] = None
    """Tokens of each shared prefix. Default: 256."""


@Parameter(name="*", group=Group.create_ordered("Sampling"))
@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingOptions:
    """What each request asks of the sampler. Default: greedy, to the full output length."""

    ignore_eos: Annotated[bool, Parameter(negative="--no-ignore-eos")] = True
    """Generate the full output length. --no-ignore-eos stops where the model ends."""
    temperature: float | None = None
    """Sampling temperature. Default: 0."""
    top_p: float | None = None
    """Nucleus sampling."""
    top_k: int | None = None
    """Top-k sampling."""
    min_p: float | None = None
    """Minimum probability relative to the likeliest token."""
    frequency_penalty: float | None = None
    """Frequency penalty."""
    presence_penalty: float | None = None
    """Presence penalty."""
    repetition_penalty: float | None = None
    """Repetition penalty."""
    extra_body: str | None = None
    """JSON object that is merged into each request."""


@Parameter(name="*", group=Group.create_ordered("Other traffic"))
@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """Traffic that is not synthetic."""

    dataset_path: Path | None = None
    """Log of requests in any form with prompts, drawn at random; file or folder."""
    trace: Path | None = None
    """Log of requests, or trace of lengths such as Azure's or Mooncake's, at its own times."""
    trace_unit: TimeUnit | None = None
    """Unit of the trace's relative times. Default: the one that all rows agree with."""
    trace_block_size: PositiveInt | None = None
    """Tokens per hash id of the trace. Default: the size that all rows agree with."""
    trace_speed: float = 1.0
    """Speed of the trace; 2 plays it twice as fast."""
    trace_duration: float | None = None
    """Play only the first seconds of the trace."""


@Parameter(name="*", group=Group.create_ordered("Search"))
@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """The search for the highest load that meets an objective."""

    find_max: Literal["rate", "concurrency"] | None = None
    """Search, from the given rate or concurrency up, for the highest that meets the objective."""
    find_budget: PositiveInt = 20
    """Maximum number of measurements."""
    find_seconds: Annotated[float, Parameter(validator=Number(gte=0))] = 20.0
    """Minimum seconds per tested rate; 0 leaves it to --num-prompts."""
    goodput_share: float = 0.9
    """Share of the requests that must keep --goodput."""


@Parameter(name="*", group=Group.create_ordered("Two servers"))
@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions:
    """A second server under the same load."""

    against: str | None = None
    """Compare with this server (URL): the same load in turn, in ABBA order."""
    against_model: str | None = None
    """Model name on that server. Default: --model."""


@Parameter(name="*", group=Group.create_ordered("Result"))
@dataclass(frozen=True, kw_only=True, slots=True)
class ResultOptions:
    """What is judged, shown and saved."""

    goodput: str | None = None
    """Objective of each request in ms: "ttft:200 tpot:50 e2el:5000"."""
    objective: Annotated[str | None, Parameter(name=["--objective", "--slo"])] = None
    """Objective of the run: "ttft:p95<300ms;tpot:p95<50ms;error<1%"."""
    metric_percentiles: str = "90,95,99"
    """Percentiles to show."""
    save_result: bool = False
    """Write vLLM's JSON."""
    save_detailed: Annotated[bool, Parameter(negative="--no-save-detailed")] = True
    """Include each request's lengths, latencies and text in the JSON."""
    result_dir: Annotated[Path, Parameter(name=["--result-dir", "-o"])] = Path()
    """Directory for --save-result."""
    result_filename: str = "bench.json"
    """File name for --save-result."""
    metadata: Annotated[tuple[str, ...], Parameter(name="--metadata")] = ()
    """KEY=VALUE that is stored in the JSON. Repeatable."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class BenchOptions:
    """All options of ``whet bench`` except the URL."""

    server: ServerOptions = ServerOptions()
    load: LoadOptions = LoadOptions()
    prompts: PromptOptions = PromptOptions()
    sampling: SamplingOptions = SamplingOptions()
    source: SourceOptions = SourceOptions()
    search: SearchOptions = SearchOptions()
    compare: CompareOptions = CompareOptions()
    result: ResultOptions = ResultOptions()

    def given(self) -> frozenset[str]:
        """Return the names of the options that differ from their defaults."""
        groups = [getattr(self, group.name) for group in fields(self)]
        return frozenset(
            each.name
            for group in groups
            for each in fields(group)
            if getattr(group, each.name) != each.default
        )
