"""Options of ``whet plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """Traffic, objective and the hardware to choose from."""

    workload: str
    """Traffic: prompt=1024,output=128,shared=896 (tokens of a request; shared of them begin every
    prompt), or a file: a request log, or a trace of lengths."""
    objective: str = "ttft:p95<500ms; tpot:p95<50ms"
    """Limits of statistics, joined by ;, as --slo of whet bench takes them."""
    rate: float | None = None
    """Requests per second to plan for. Default: one replica, and what it takes."""
    gpus: str | None = None
    """GPUs to consider, such as "H100 SXM,L4". Default: all that are known."""
    parallel: str = "1,2,4,8"
    """Numbers of GPUs that share a replica by tensor parallelism."""
    weights: str | None = None
    """Precisions to consider, such as 16bit,W4A16. Default: 16 bit, 4 bit, and the 8 bit of the
    GPU. A quantized checkpoint is planned as stored."""
    kv_cache: str = "auto"
    """Types of the KV cache to consider, such as auto,fp8."""
    speculation: str | None = None
    """Consider a speculation head too: K:LENGTH, such as 4:3.4 for four proposed tokens and an
    acceptance length of 3.4, which is yours to measure."""
    prices: str | None = None
    """US$ an hour of a GPU in place of the built-in price: "H100 SXM=2.2,L4=0.5"."""
    max_model_len: int | None = None
    """Longest request in tokens. Default: the longest of the workload, in steps of 1,024."""
    memory: bool = False
    """Show the memory of the first GPU by batch size and context instead, in GiB a GPU."""
    calibration: Path | None = None
    """Coefficients that whet calibrate wrote. Default: the stored ones of the GPU."""
