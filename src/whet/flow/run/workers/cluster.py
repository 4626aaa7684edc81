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

from whet.core.errors import EngineLostError, InfeasibleError, UsageError, WhetError
from whet.core.flags import plain_args
from whet.flow.run.plan import Plan

_CONNECT_S: Final = 5.0
_PATIENCE_S: Final = 60.0
"""For a node to come back after the last is lost."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def require_ray() -> None:
    """``UsageError`` where Ray is not installed."""
    if find_spec("ray") is None:
        raise UsageError(
            "--executor ray needs Ray, which is not installed: pip install 'whet[ray]'"
        )


@contextmanager
def connect(address: str | None) -> Iterator[ModuleType]:
    """Connect to a running cluster and yield the ``ray`` module; disconnect at the end.

    ``address`` is HOST:PORT of the head; None is the cluster that this machine is a node of.
    Raises ``UsageError``.
    """
    require_ray()
    _knock(address)
    import ray

    handlers = {number: h for number in _SIGNALS if (h := signal.getsignal(number)) is not None}
    try:
        ray.init(address=address or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        why = " ".join(str(error).split())[:200]
        where = address or "this machine"
        raise UsageError(
            f"cannot join the Ray cluster of {where} ({why})",
            fix="start its node here with ray start --head, or ray start --address HOST:PORT",
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray sets its own for SIGTERM
                signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Refuse an address where nothing answers: Ray itself would try for minutes."""
    if address is None:
        return
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


def gpus_of(plan: Plan) -> int:
    """GPUs of a worker: as many as the largest variant needs, so that each can measure all."""
    if plan.device.kind != "cuda":
        return 0
    every = (plain_args(resolved.variant) for resolved in plan.resolved)
    return max(math.prod(int(args.get(name, 1)) for name in _DEGREES) for args in every)


def demand_of(ray: ModuleType, plan: Plan) -> dict[str, float]:
    """What Ray is asked for a session: GPUs, or all CPUs of one of the largest nodes."""
    if gpus := gpus_of(plan):
        return {"GPU": gpus, "CPU": 1.0}
    return {"CPU": max((node.get("CPU", 0.0) for node in offers(ray)), default=0.0)}


def count_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit on the nodes that are alive at the same time."""
    needed = {name: amount for name, amount in demand.items() if amount}
    return sum(
        min((int(node.get(name, 0.0) // each) for name, each in needed.items()), default=0)
        for node in offers(ray)
    )


def await_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit now; waits a minute for a node. ``EngineLostError`` where none comes."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (workers := count_workers(ray, demand)):
        if time.monotonic() > deadline:
            raise EngineLostError(
                "every worker of the Ray cluster is gone",
                fix="start a node with ray start --address HOST:PORT and go on with --resume",
            )
        time.sleep(1.0)
    return workers


def require_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit on the cluster; ``InfeasibleError`` for none."""
    if workers := count_workers(ray, demand):
        return workers
    if "GPU" not in demand:
        raise InfeasibleError(
            "no node of the Ray cluster offers a CPU", fix="start one with ray start --num-cpus 1"
        )
    most = max((int(node.get("GPU", 0)) for node in offers(ray)), default=0)
    if most == 0:
        raise InfeasibleError(
            "the Ray cluster has no GPU, and the spec was resolved for one",
            fix="start its nodes on machines with GPUs, or leave --executor ray out",
        )
    raise InfeasibleError(
        f"a variant needs {demand['GPU']:.0f} GPUs of one node, and the largest of the Ray cluster "
        f"has {most}",
        fix="lower tensor_parallel_size, or add a node",
    )


def offers(ray: ModuleType) -> list[dict[str, float]]:
    """What each node that is alive offers, by resource."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def as_error(error: Exception) -> Exception:
    """Return what ended a task: whet's own error, or Ray's with the traceback of a defect."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, WhetError):
        return cause
    if "failed to import" in str(error):
        return EngineLostError(
            f"the workers of the Ray cluster cannot import whet ({str(error).splitlines()[-1]})",
            fix="install it as it is here on every node",
        )
    return error
