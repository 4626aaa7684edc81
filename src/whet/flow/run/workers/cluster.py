"""The Ray cluster: connect to it, find devices, start workers. The one file that imports Ray."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from whet.core.errors import InfeasibleError, UsageError
from whet.flow.run.workers.actor import Worker

_CONNECT_S: Final = 5.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_THREADS: Final = 4
"""Of an actor: it sends, is asked to stop and waits for a message at the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node of the cluster with room for ``workers`` workers of ``gpus`` GPUs each.

    Without GPUs a node has one worker, which takes all its ``cpus``.
    """

    id: str
    address: str
    workers: int
    gpus: int
    cpus: float


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
        ray.init(
            address=address or "auto",
            log_to_driver=False,
            configure_logging=False,
        )
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        why = " ".join(str(error).split())[:200]
        where = address or "this machine"
        raise UsageError(
            f"cannot join the Ray cluster of {where} ({why}); start its node here with ray start "
            "--head, or ray start --address HOST:PORT"
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
            f"nothing answers at --address {address}; start the head there with ray start --head "
            f"--port {port}, or correct the address"
        ) from error


def alive_nodes(ray: ModuleType, gpus: int) -> list[Node]:
    """The nodes that have room for a worker of ``gpus`` GPUs; with 0, every node with a CPU."""
    nodes = []
    for node in ray.nodes():
        resources = node["Resources"]
        cpus = float(resources.get("CPU", 0.0))
        room = int(resources.get("GPU", 0) // gpus) if gpus else int(cpus >= 1)
        if node["Alive"] and room:
            nodes.append(
                Node(
                    id=node["NodeID"],
                    address=node["NodeManagerAddress"],
                    workers=room,
                    gpus=gpus,
                    cpus=cpus,
                )
            )
    return nodes


def require_nodes(ray: ModuleType, gpus: int) -> list[Node]:
    """``alive_nodes``; ``InfeasibleError`` for an empty list."""
    nodes = alive_nodes(ray, gpus)
    if nodes:
        return nodes
    if gpus == 0:
        raise InfeasibleError(
            "no node of the Ray cluster offers a CPU; start one with ray start --num-cpus 1"
        )
    most = max((int(n["Resources"].get("GPU", 0)) for n in ray.nodes() if n["Alive"]), default=0)
    if most == 0:
        raise InfeasibleError(
            "the Ray cluster has no GPU, and the spec was resolved for one; start its nodes on "
            "machines with GPUs, or leave --executor ray out"
        )
    raise InfeasibleError(
        f"a variant needs {gpus} GPUs of one node, and the largest of the Ray cluster has {most}; "
        "lower tensor_parallel_size, or add a node"
    )


def start_worker(ray: ModuleType, node: Node, module: str) -> Any:
    """A new worker on that node and on no other. It is never restarted, nor is a call repeated."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=_THREADS,
        num_gpus=node.gpus,
        num_cpus=1 if node.gpus else node.cpus,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    )(Worker)
    return actor.remote(module)


def kill_workers(ray: ModuleType, actors: Sequence[Any]) -> None:
    """End actors at once; the guardians end what engines they have left."""
    for actor in actors:
        with suppress(ray.exceptions.RayError):
            ray.kill(actor, no_restart=True)
