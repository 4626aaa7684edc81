"""What the flags of ``whet bench`` say together, and which of them do not go together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.core.errors import UsageError

if TYPE_CHECKING:
    import typer

    from whet.flow.bench.request import PrefixReplay, Source
    from whet.load.lengths import Lengths
    from whet.load.trace import Trace

_METRICS: Final = ("ttft", "tpot", "itl", "e2el")
_MOST_THINK_S: Final = 10_000.0

_SYNTHETIC: Final = "synthetic prompts"
_DATASET: Final = "--dataset-path"
_TRACE: Final = "--trace"
_CONVERSATIONS: Final = "--conversations"

_RATED: Final = (_SYNTHETIC, _DATASET)
_GOES_WITH: Final[dict[str, tuple[str, ...]]] = {
    "form": (_SYNTHETIC, _TRACE),
    "input_len": (_SYNTHETIC, _CONVERSATIONS),
    "output_len": (_SYNTHETIC, _DATASET, _TRACE, _CONVERSATIONS),
    "random_range_ratio": (_SYNTHETIC,),
    "prefixes": (_SYNTHETIC,),
    "prefix_len": (_SYNTHETIC,),
    "request_rate": _RATED,
    "static_batches": _RATED,
    "dataset_name": (_SYNTHETIC, _DATASET),
    "num_prompts": (_SYNTHETIC, _DATASET, _TRACE),
    "find_max": (_SYNTHETIC, _DATASET, _CONVERSATIONS),
    "trace_speed": (_TRACE,),
    "trace_duration": (_TRACE,),
    "turns": (_CONVERSATIONS,),
    "turn_len": (_CONVERSATIONS,),
    "think_s": (_CONVERSATIONS,),
}
_NEEDS: Final = {
    "burstiness": "request_rate",
    "constant": "request_rate",
    "ramp_up_end_rps": "request_rate",
    "ramp_s": "ramp_up_end_rps",
    "prefix_zipf": "prefixes",
    "prefix_share": "prefixes",
    "against_model": "against",
}
_DATASET_NAMES: Final = ("random", "sharegpt", "custom")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFlags:
    """Where the traffic comes from, as it was typed; None is not given.

    ``given`` are the names of all parameters that were typed.
    """

    given: frozenset[str]

    dataset_path: Path | None
    dataset_name: str | None
    trace: Path | None
    trace_duration_s: float | None
    conversations: int | None
    turns: int
    turn_len: int
    think_s: float
    input_len: int | None
    output_len: int | None
    num_prompts: int | None
    seed: int

    @property
    def kind(self) -> str:
        """The flag that chooses the source; ``UsageError`` for two of them."""
        given = {
            _DATASET: self.dataset_path,
            _TRACE: self.trace,
            _CONVERSATIONS: self.conversations,
        }
        chosen = [flag for flag, value in given.items() if value is not None]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} are different traffic; give one of them")
        return chosen[0] if chosen else _SYNTHETIC


def given_flags(ctx: typer.Context) -> frozenset[str]:
    """The parameters that were typed, by name."""
    return frozenset(name for name in ctx.params if is_given(ctx, name))


def refuse_misfits(given: frozenset[str], kind: str) -> None:
    """``UsageError`` for a flag that was given and has no meaning beside the others."""
    for name, kinds in _GOES_WITH.items():
        if name not in given or kind in kinds:
            continue
        if kind == _SYNTHETIC:
            raise UsageError(f"{_flag(name)} needs {kinds[0]}; give it too")
        raise UsageError(f"{_flag(name)} does not go with {kind}; leave one of the two out")
    for name, other in _NEEDS.items():
        if name in given and other not in given:
            raise UsageError(f"{_flag(name)} needs {_flag(other)}; give it too")
    if {"static_batches", "request_rate"} <= given:
        raise UsageError("--static-batches waits for its slowest; leave out --request-rate")
    for name in ("find_max", "until"):
        if {"against", name} <= given:
            raise UsageError(
                f"--against sends a fixed number of trials to each server; leave out {_flag(name)}"
            )


def read_source(flags: SourceFlags) -> Source | None:
    """The source of the traffic, a trace already read; None for synthetic prompts."""
    _check_dataset_name(flags)
    if flags.dataset_path is not None:
        from whet.flow.bench.request import DatasetFile

        return DatasetFile(path=flags.dataset_path, limits=_limits(flags.dataset_name))
    if flags.trace is not None:
        return _read_trace(flags, flags.trace)
    return None if flags.conversations is None else _conversations(flags, flags.conversations)


def requests_of(flags: SourceFlags, source: Source | None) -> int:
    """How many requests a run has, or how many conversations."""
    from whet.flow.bench.request import PrefixReplay
    from whet.load.trace import Trace

    match source:
        case Trace(rows=rows):
            return len(rows)
        case PrefixReplay(timeline=timeline):
            return len(timeline.rows)
    return flags.conversations or flags.num_prompts or 200


def length_of(tokens: int | None, default: Lengths, ratio: float) -> Lengths | None:
    """``tokens`` ± ``ratio`` of them; None where neither was typed."""
    from whet.load.lengths import Lengths

    if tokens is None and ratio == 0:
        return None
    return Lengths.around(default.low if tokens is None else tokens, ratio)


def speed_of(flags: SourceFlags, source: Source | None, speed: float) -> float | None:
    """How fast the source's own times are played; None where it has none to play."""
    from whet.flow.bench.request import PrefixReplay

    untimed = isinstance(source, PrefixReplay) and not source.timed
    return None if flags.trace is None or untimed else speed


def read_arrivals(
    rate: float | None,
    burstiness: float,
    ramp: tuple[float, float] | None,
    *,
    constant: bool,
    trace_speed: float | None,
) -> Any:
    """The arrival process; None for a closed loop. ``trace_speed`` is set for a trace alone."""
    from whet.load.arrivals import Arrivals

    if trace_speed is not None:
        if not (math.isfinite(trace_speed) and trace_speed > 0):
            raise UsageError(f"--trace-speed {trace_speed:g}: give a finite number above 0")
        return Arrivals(kind="trace", speed=trace_speed)
    if rate is None:
        return None
    if burstiness != 1.0 and (constant or ramp is not None):
        raise UsageError("--burstiness does not go with --constant or a ramp; leave it out")
    if ramp is not None:
        kind = "ramp_constant" if constant else "ramp_poisson"
        return Arrivals(kind=kind, rate_rps=rate, end_rate_rps=ramp[0], ramp_s=ramp[1])
    if constant and math.isfinite(rate):
        return Arrivals(kind="constant", rate_rps=rate)
    return Arrivals.at_rate(rate, burstiness=burstiness)


def read_selection(metrics: str, percentiles: str) -> Any:
    """Which figures to show."""
    from whet.report.vllm_json import Selection

    names = tuple(part.strip() for part in metrics.split(",") if part.strip())
    unknown = [name for name in names if name not in _METRICS]
    if unknown or not names:
        raise UsageError(
            f"--percentile-metrics {metrics!r}: give some of {', '.join(_METRICS)}, comma-separated"
        )
    try:
        wanted = tuple(float(part) for part in percentiles.split(","))
    except ValueError:
        wanted = ()
    if not wanted or not all(0 < p < 100 for p in wanted):
        raise UsageError(
            f"--metric-percentiles {percentiles!r}: give numbers between 0 and 100, like 90,95,99"
        )
    return Selection(metrics=names, percentiles=wanted)


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether a parameter was typed, not left at its default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_dataset_name(flags: SourceFlags) -> None:
    name = flags.dataset_name
    if name is None:
        return
    if name not in _DATASET_NAMES:
        raise UsageError(f"--dataset-name {name!r}: choose one of {', '.join(_DATASET_NAMES)}")
    if name == "random" and flags.dataset_path is not None:
        raise UsageError("--dataset-name random reads no file; leave out --dataset-path")
    if name != "random" and flags.dataset_path is None:
        raise UsageError(f"--dataset-name {name} needs its file; give --dataset-path")


def _limits(name: str | None) -> Any:
    """vLLM's for ShareGPT, as it has it; else every row that has a token in and one out."""
    from whet.load.dataset import LengthLimits
    from whet.load.lengths import LONGEST

    if name == "sharegpt":
        return LengthLimits()
    return LengthLimits(
        min_input_tokens=1,
        min_output_tokens=1,
        max_input_tokens=LONGEST,
        max_total_tokens=2 * LONGEST,
    )


def _read_trace(flags: SourceFlags, path: Path) -> Trace | PrefixReplay:
    from whet.flow.bench.replay import holds_prompts
    from whet.load.prefix_trace_file import is_prefix_trace
    from whet.load.trace import cut_trace, read_trace

    if is_prefix_trace(path):
        return _read_prefix_trace(flags, path)
    trace = read_trace(path, max_rows=flags.num_prompts)
    if any(row.at_ns is None for row in trace.rows):
        raise UsageError(
            f"{path} has no times to play; give each line a time, or send its prompts with "
            "--dataset-path"
        )
    if "form" in flags.given and holds_prompts(trace):
        raise UsageError(f"{path} holds its own prompts; leave out --form")
    _refuse_output_len(flags, trace)
    return cut_trace(trace, duration_s=flags.trace_duration_s)


def _read_prefix_trace(flags: SourceFlags, path: Path) -> PrefixReplay:
    """With times, or without where not every request has one: then they are sent in order."""
    from whet.flow.bench.request import PrefixReplay
    from whet.load.prefix_trace_file import read_prefix_trace
    from whet.load.prefix_traces import as_trace
    from whet.load.trace import cut_trace

    trace = read_prefix_trace(path, max_requests=flags.num_prompts)
    whole = PrefixReplay(trace=trace, timeline=as_trace(trace))
    _refuse_output_len(flags, whole.timeline)
    if not whole.timed:
        _refuse_untimed(flags, trace.path)
        return whole
    timeline = cut_trace(whole.timeline, duration_s=flags.trace_duration_s)
    kept = replace(trace, requests=trace.requests[: len(timeline.rows)])
    return PrefixReplay(trace=kept, timeline=timeline)


def _refuse_output_len(flags: SourceFlags, trace: Trace) -> None:
    if flags.output_len is not None and all(row.output_tokens is not None for row in trace.rows):
        raise UsageError(f"{trace.path} tells how long every answer was; leave out --output-len")


def _refuse_untimed(flags: SourceFlags, path: str) -> None:
    for name in ("trace_speed", "trace_duration"):
        if name in flags.given:
            raise UsageError(f"{path} has no times to play; leave out {_flag(name)}")


def _conversations(flags: SourceFlags, count: int) -> Source:
    from whet.flow.bench.request import INPUT_LENGTHS, OUTPUT_LENGTHS
    from whet.load.conversations import ConversationShape

    if not 0 <= flags.think_s <= _MOST_THINK_S:
        raise UsageError(f"--think-s {flags.think_s:g}: give seconds from 0 to {_MOST_THINK_S:g}")
    return ConversationShape(
        conversations=count,
        turns=flags.turns,
        first_tokens=flags.input_len or INPUT_LENGTHS.low,
        added_tokens=flags.turn_len,
        output_tokens=flags.output_len or OUTPUT_LENGTHS.low,
        think_ms=round(flags.think_s * 1000),
        seed=flags.seed,
    )
