"""Options of ``whet bench`` that the load reads as they are: server, load, prompts, sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.types import PositiveFloat, PositiveInt
from cyclopts.validators import Number

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
