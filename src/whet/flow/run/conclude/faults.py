"""What the engine builds of a run are known to get wrong, and whether its traffic meets that."""

from __future__ import annotations

from collections import defaultdict

from whet.core.format import percent
from whet.core.records.decision import GREEDY_ONLY
from whet.core.records.load import TrafficFacts
from whet.core.run import Run
from whet.engines.compatibility import known_faults


def log_facts(run: Run) -> TrafficFacts | None:
    """The log that the requests are from; None where they are generated."""
    return run.store.get("traffic", "log", TrafficFacts)


def sampled_requests(run: Run) -> str | None:
    """Say which requests of the traffic may be sampled; None where all are greedy."""
    spec, log = run.require_spec(), log_facts(run)
    if spec.load.trace is not None:
        return f"whether the requests of {spec.load.trace.name} are sampled is not known"
    if spec.traffic is None:
        heat = spec.workload.temperature
        return f"workload.temperature is {heat:g}" if heat > 0 else None
    if log is None:
        return f"whether the requests of {spec.traffic.log.name} are sampled was not stored"
    sampled = log.requests - log.greedy
    if sampled == 0:
        return None
    share = percent(sampled / log.requests)
    return (
        f"{sampled:,} of {log.requests:,} requests of the traffic ({share}) have no temperature 0"
    )


def engine_faults(run: Run) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Map variants to the fault that excludes them, and to what limits their use.

    A fault of sampled text excludes a variant unless every request of the traffic is greedy.
    """
    sampled = sampled_requests(run)
    faults: dict[str, str] = {}
    limits: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, resolved in run.engines.items():
        build = f"{resolved.engine} {resolved.engine_version}"
        for row in known_faults(resolved):
            if row.outcome == "doubtful text":
                limits[name] += (row.sentence,)
            elif row.outcome == "wrong text":
                faults[name] = f"{build}: {row.says}"
            elif sampled is not None:
                faults[name] = f"{build}: {row.says}, and {sampled}"
            else:
                limits[name] += (f"{GREEDY_ONLY}: {row.says} ({build})",)
    return faults, limits
