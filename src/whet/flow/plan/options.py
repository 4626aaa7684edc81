"""Options of ``whet plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt

from whet.core.units import TimeUnit


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """Traffic, objective and the hardware to choose from."""

    workload: Annotated[
        str,
        Parameter(
            help="Traffic: prompt=1024,output=128,shared=896 (tokens of a request; shared of them "
            "begin every prompt; answers vary by ±50%), or a file: a request log, or a trace."
        ),
    ]
    trace_unit: TimeUnit | None = None
    """Unit of the relative times of a trace in --workload. Default: the one that all rows agree
    with."""
    trace_block_size: PositiveInt | None = None
    """Tokens per hash id of a trace in --workload. Default: the size that all rows agree with."""
    objective: Annotated[str, Parameter(name=["--objective", "--slo"])] = (
        "ttft:p95<500ms; tpot:p95<50ms"
    )
    """Limits of statistics, joined by ;, as whet bench takes them."""
    rate: PositiveFloat | None = None
    """Requests per second to plan for. Default: one replica, and what it takes."""
    gpus: str | None = None
    """GPUs to consider, such as "H100 SXM,L4"; with a number, such as "8x H200", every layout of
    exactly so many. Default: all that are known."""
    parallel: str | None = None
    """Layouts to consider, such as 4,tp2xdp4,tp4xpp2,dp8xep: tensor, data, pipeline and expert
    parallel; a number is tensor parallel. Default: 1, 2, 4 and 8, and of a mixture of experts
    expert parallel too; or all of the number in --gpus."""
    concurrency: str | None = None
    """Predict at these requests in flight, such as 8,64,256, whether they meet the objective or
    not. Default: the largest that meets it."""
    weights: str | None = None
    """Precisions to consider, such as 16bit,W4A16. Default: 16 bit, 4 bit, and the 8 bit of the
    GPU. A quantized checkpoint is planned as stored."""
    kv_cache: str = "auto"
    """Types of the KV cache to consider, such as auto,fp8."""
    prices: str | None = None
    """US$ an hour of a GPU in place of the built-in price: "H100 SXM=2.2,L4=0.5"."""
    max_model_len: PositiveInt | None = None
    """Longest request in tokens. Default: the longest of the workload, in steps of 1,024."""
    all_rows: Annotated[bool, Parameter(name="--all")] = False
    """Show those too that another beats in cost, TTFT and TPOT at once."""
