"""Options of ``whet watch``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """How the deployment is watched."""

    url: str
    """URL of the deployed server."""
    period: Annotated[float, Parameter(validator=Number(gte=0.5, lte=86400))] = 60.0
    """Seconds between two looks. Probes are sent less often on a busy server."""
    periods: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """End after this many periods. Default: only when stopped."""
    state: Path = Path("watch")
    """Folder of the state, the journal and the proposed runs."""
    listen: str = "127.0.0.1:9464"
    """HOST:PORT of the watch's own metrics for Prometheus; off for none."""
    engine_log: Path | None = None
    """Log file of the engine: the claims of every new start are judged from it."""
