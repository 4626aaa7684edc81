"""Options of ``whet bench``, under the names of ``vllm bench serve`` where it has them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.types import PositiveInt
from cyclopts.validators import Number

from whet.core.bench_options import LoadOptions, PromptOptions, SamplingOptions, ServerOptions
from whet.core.units import TimeUnit

_Seconds = Annotated[float, Parameter(validator=Number(gte=0))]


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
    find_seconds: _Seconds = 20.0
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

    server: ServerOptions = field(default_factory=ServerOptions)
    load: LoadOptions = field(default_factory=LoadOptions)
    prompts: PromptOptions = field(default_factory=PromptOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    source: SourceOptions = SourceOptions()
    search: SearchOptions = SearchOptions()
    compare: CompareOptions = CompareOptions()
    result: ResultOptions = ResultOptions()

    def given(self) -> frozenset[str]:
        """The names of the options that differ from their defaults."""
        groups = [getattr(self, group.name) for group in fields(self)]
        return frozenset(
            each.name
            for group in groups
            for each in fields(group)
            if getattr(group, each.name) != each.default
        )
