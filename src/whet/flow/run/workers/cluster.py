"""The Ray cluster: connect to it, and find its devices."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from whet.core.errors import EngineLostError, InfeasibleError, UsageError
from whet.core.flags import plain_args
from whet.flow.run.plan import Plan

_CONNECT_S: Final = 5.0
_PATIENCE_S: Final = 60.0
"""For a node to come back after the last is lost."""
_DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@contextmanager
def connect(address: str | None) -> Iterator[ModuleType]:
    """Connect to a running cluster and yield the ``ray`` module; disconnect at the end.

    ``address`` is HOST:PORT of the head; None is the cluster that this machine is a node of.
    Raises ``UsageError``.
    """
    if find_spec("ray") is None:
        raise UsageError(
            "--executor ray needs Ray, which is not installed: pip install 'whet[ray]'"
        )
    if address is not None:
        _knock(address)
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        why = " ".join(str(error).split())[:200]
        raise UsageError(
            f"cannot join the Ray cluster of {address or 'this machine'} ({why})",
            fix="start its node here with ray start --head, or ray start --address HOST:PORT",
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Refuse an address where nothing answers: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal():
        raise UsageError(f"--address {address}: write HOST:PORT of the cluster's head")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"nothing answers at --address {address}",
            fix=f"start the head there with ray start --head --port {port}, or correct the address",
        ) from error


def demand_of(ray: ModuleType, plan: Plan) -> dict[str, float]:
    """Return a session's resources: GPUs for the largest variant, or a node's CPUs."""
    if plan.device.kind != "cuda":
        return {"CPU": max((node.get("CPU", 0.0) for node in _offers(ray)), default=0.0) or 1.0}
    every = (plain_args(resolved.variant) for resolved in plan.resolved)
    gpus = max(math.prod(int(args.get(name, 1)) for name in _DEGREES) for args in every)
    return {"GPU": gpus, "CPU": 1.0}


def await_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit now; waits a minute for a node. ``EngineLostError`` where none comes."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (workers := _count_workers(ray, demand)):
        if time.monotonic() > deadline:
            raise EngineLostError(
                "every worker of the Ray cluster is gone",
                fix="start a node with ray start --address HOST:PORT and go on with --resume",
            )
        time.sleep(1.0)
    return workers


def require_workers(ray: ModuleType, plan: Plan) -> int:
    """Sessions that fit; ``InfeasibleError`` for none, and for devices of another kind."""
    demand = demand_of(ray, plan)
    if plan.device.kind == "cpu" and any(node.get("GPU") for node in _offers(ray)):
        raise InfeasibleError(
            "the Ray cluster has GPUs and this machine has none, so the spec was resolved for "
            "a CPU",
            fix="run whet on one of the cluster's GPU nodes",
        )
    if workers := _count_workers(ray, demand):
        return workers
    needed = " and ".join(f"{amount:.0f} {name}" for name, amount in demand.items())
    raise InfeasibleError(
        f"no node of the Ray cluster offers {needed}, which the largest variant needs",
        fix="add one, lower tensor_parallel_size, or leave --executor ray out",
    )


def _count_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit on the nodes that are alive at the same time."""
    return sum(
        min(int(node.get(name, 0.0) // needed) for name, needed in demand.items())
        for node in _offers(ray)
    )


def _offers(ray: ModuleType) -> list[dict[str, float]]:
    """What each node that is alive offers, by resource."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
