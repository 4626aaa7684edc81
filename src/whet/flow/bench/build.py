"""From the options of ``whet bench`` to the request; which options do not go together."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from whet.client.calls import body_fields
from whet.client.endpoint import HEADERS_VARIABLE, INSECURE_VARIABLE, KEY_VARIABLE
from whet.core.bench_options import (
    BenchOptions,
    Form,
    LoadOptions,
    PromptOptions,
    ResultOptions,
    SamplingOptions,
    ServerOptions,
    SourceOptions,
)
from whet.core.errors import UsageError
from whet.core.records.objective import Bound, Constraint
from whet.core.redact import is_secret_name, remember_secrets
from whet.core.server_url import split_server_url
from whet.load.arrivals import Arrivals
from whet.load.lengths import Lengths, SharedPrefixes
from whet.load.sources.request import INPUT_LENGTHS, OUTPUT_LENGTHS, BenchRequest, Source
from whet.metrics.objective_text import parse_goodput, parse_objective
from whet.requests.trace import Reading, Trace, cut_trace, read_trace

_USUAL_REQUESTS: Final = 200

_SYNTHETIC: Final = "synthetic prompts"
_DATASET: Final = "--dataset-path"
_TRACE: Final = "--trace"

_RATED: Final = (_SYNTHETIC, _DATASET)
_GOES_WITH: Final[dict[str, tuple[str, ...]]] = {
    "form": (_SYNTHETIC, _TRACE),
    "backend": (_SYNTHETIC, _TRACE),
    "input_len": (_SYNTHETIC,),
    "random_range_ratio": (_SYNTHETIC,),
    "prefixes": (_SYNTHETIC,),
    "prefix_len": (_SYNTHETIC,),
    "request_rate": _RATED,
    "find_max": _RATED,
    "trace_speed": (_TRACE,),
    "trace_duration": (_TRACE,),
    "trace_unit": (_TRACE,),
    "trace_block_size": (_TRACE,),
}
"""The kinds of traffic that an option has a meaning for; the first is named in messages."""
_NEEDS: Final = {"burstiness": "request_rate", "against_model": "against"}


def build_request(url: str | None, options: BenchOptions) -> BenchRequest:
    """The request that the options make; headers and key go into the environment.

    Raises ``UsageError`` for options that do not go together and values that cannot be used.
    """
    given, traffic = options.given(), options.source
    _refuse_misfits(given, _kind(traffic))
    prompts, load, server = options.prompts, options.load, options.server
    source: Source | None = traffic.dataset_path
    if traffic.trace is not None:
        source = _trace(options, given, traffic.trace)
    count = len(source.rows) if isinstance(source, Trace) else load.num_prompts or _USUAL_REQUESTS
    arrivals = _arrivals(load, traffic)
    if url is None:
        raise UsageError("the server's address is missing", fix="give its URL")
    split_server_url(url, "URL")
    set_environment(server)
    return BenchRequest(
        url=url,
        requests=count,
        form=_form(server),
        server=server,
        load=load,
        body=_body(options.sampling),
        inputs=_lengths(prompts.input_len, INPUT_LENGTHS, prompts.random_range_ratio),
        outputs=_lengths(prompts.output_len, OUTPUT_LENGTHS, prompts.random_range_ratio),
        prefixes=_shared_prefixes(prompts),
        source=source,
        arrivals=arrivals,
    )


def set_environment(server: ServerOptions) -> None:
    """Key, headers and TLS of every request: the client and its processes read them there."""
    if server.api_key is not None:
        os.environ[KEY_VARIABLE] = server.api_key
    if server.header:
        headers = key_values(server.header, "--header")
        remember_secrets(
            {
                f"{name}_KEY": value
                for name, value in headers.items()
                if is_secret_name(name) or name.lower() in ("authorization", "cookie")
            }
        )
        os.environ[HEADERS_VARIABLE] = json.dumps(headers)
    if server.insecure:
        os.environ[INSECURE_VARIABLE] = "1"


def read_objectives(
    options: ResultOptions,
) -> tuple[tuple[Bound, ...] | None, tuple[Constraint, ...] | None]:
    """The limits of ``--goodput`` and of ``--slo``; ``UsageError`` for one that is wrong."""
    bounds = None if options.goodput is None else parse_goodput([options.goodput])
    return bounds, None if options.objective is None else parse_objective(options.objective)


def key_values(texts: Sequence[str], flag: str) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping; ``UsageError`` for another form."""
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not key.strip() or not equals:
            raise UsageError(f"{flag} takes KEY=VALUE", fix="write it as KEY=VALUE")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _kind(source: SourceOptions) -> str:
    """The option that chooses the traffic; ``UsageError`` for two of them."""
    if source.dataset_path is not None and source.trace is not None:
        raise UsageError(f"{_DATASET} and {_TRACE} are different traffic", fix="give one of them")
    if source.dataset_path is not None:
        return _DATASET
    return _SYNTHETIC if source.trace is None else _TRACE


def _refuse_misfits(given: frozenset[str], kind: str) -> None:
    for name, kinds in _GOES_WITH.items():
        if name not in given or kind in kinds:
            continue
        if kind == _SYNTHETIC:
            raise UsageError(f"{_flag(name)} needs {kinds[0]}", fix="give it too")
        raise UsageError(f"{_flag(name)} does not go with {kind}", fix="leave one of the two out")
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise UsageError(f"{_flag(name)} needs {_flag(other)}", fix="give it too")
    if {"against", "find_max"} <= given:
        raise UsageError("--against sends fixed loads to both", fix="leave out --find-max")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _form(server: ServerOptions) -> Form:
    """The form of the prompts; ``UsageError`` where two options name different ones."""
    if server.backend is None:
        return server.form
    chat = server.backend == "openai-chat"
    if server.form != "ids" and chat != (server.form == "chat"):
        raise UsageError("--backend and --form name different endpoints", fix="give one of them")
    return "chat" if chat else server.form


def _trace(options: BenchOptions, given: frozenset[str], path: Path) -> Trace:
    source = options.source
    whole = read_trace(path, Reading(unit=source.trace_unit, block_size=source.trace_block_size))
    trace = cut_trace(whole, duration_s=source.trace_duration, rows=options.load.num_prompts)
    if any(row.at_ns is None for row in trace.rows):
        raise UsageError(
            f"{path} has no times to play",
            fix="give each line a time, or send its prompts with --dataset-path",
        )
    if "form" in given and trace.holds_prompts:
        raise UsageError(f"{path} holds its own prompts", fix="leave out --form")
    has_lengths = all(row.output_bound is not None for row in trace.rows)
    if options.prompts.output_len is not None and has_lengths:
        raise UsageError(f"{path} has the length of every answer", fix="leave out --output-len")
    return trace


def _lengths(tokens: int | None, default: Lengths, ratio: float) -> Lengths | None:
    """``tokens`` ± ``ratio`` of them; None where neither was given."""
    if tokens is None and ratio == 0:
        return None
    return Lengths.around(default.low if tokens is None else tokens, ratio)


def _shared_prefixes(prompts: PromptOptions) -> SharedPrefixes:
    count = prompts.prefixes or int(prompts.prefix_len is not None)
    return SharedPrefixes(count=count, tokens=(prompts.prefix_len or 256) if count else 0)


def _arrivals(load: LoadOptions, source: SourceOptions) -> Arrivals | None:
    """The arrival process; None for a closed loop."""
    if source.trace is not None:
        if not (math.isfinite(source.trace_speed) and source.trace_speed > 0):
            raise UsageError(f"--trace-speed {source.trace_speed:g}: give a finite number above 0")
        return Arrivals(speed=source.trace_speed)
    if load.request_rate is None:
        return None
    return Arrivals(rate_rps=load.request_rate, burstiness=load.burstiness)


def _body(options: SamplingOptions) -> dict[str, Any]:
    """What is merged into each request's body."""
    names = set(SamplingOptions.__dataclass_fields__) - {"ignore_eos", "extra_body"}
    body = {name: value for name in sorted(names) if (value := getattr(options, name)) is not None}
    if not options.ignore_eos:
        body |= {"ignore_eos": None, "skip_special_tokens": None}
    if options.extra_body is not None:
        body |= body_fields(options.extra_body, "--extra-body")
    return body
