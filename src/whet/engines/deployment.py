"""The plan of a server in a container: what every deployment target renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """A checkpoint folder of the host, read-only in the container. ``variable`` overrides it."""

    variable: str
    host: str
    container: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Settings of the measured command that a deployed one does not have, and why."""

    why: str
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One variant as its engine wants it started, in a container and on this machine.

    The container runs ``entrypoint``, ``model_words``, ``words``; ``model_words`` name the model,
    its ``revision`` on the hub and its served name, ``words`` are the engine's own flags. It
    listens on ``port``, as ``user``, with its caches below ``home``; ``probe_body`` is the JSON of
    a request to ``probe_path`` that generates one token. ``api_key_variable`` and
    ``hub_token_variable`` are set from secrets. ``local_argv`` and ``local_env`` start it on
    the machine that measured, ``{port}`` where the port goes. ``edges_s`` are the edges of the
    deployed engine's histograms in seconds, by family; flags that set them are in both commands,
    because they do not change what is served. ``left_out`` is what the container lacks of the
    measured command, ``local_left_out`` what the local command lacks; they and ``notes`` become
    comments.
    """

    variant: str
    engine: str
    engine_version: str
    device: str
    image: str
    entrypoint: tuple[str, ...]
    model: str
    revision: str | None
    served_model_name: str
    model_words: tuple[str, ...]
    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    gpus: int
    port: int
    user: int
    home: str
    health_path: str
    metrics_path: str
    probe_path: str
    probe_body: str
    api_key_variable: str
    hub_token_variable: str
    local_argv: tuple[str, ...]
    local_env: tuple[tuple[str, str], ...]
    edges_s: Mapping[str, tuple[float, ...]]
    left_out: tuple[LeftOut, ...]
    local_left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    @property
    def args(self) -> tuple[str, ...]:
        """The words after ``entrypoint``."""
        return (*self.model_words, *self.words)


class DeploymentPlanner(Protocol):
    """Plans the deployment of a variant that was measured."""

    def __call__(
        self,
        resolved: ResolvedEngine,
        *,
        image_tag: str | None = None,
        edges_s: Mapping[str, tuple[float, ...]] | None = None,
        as_measured: bool = False,
        load: Load | None = None,
    ) -> Deployment:
        """``image_tag`` is the measured version where it is None.

        ``as_measured`` keeps what is the measurement's own. A server that is deployed for a
        ``load`` of requests in flight runs no more of them at a time; ``notes`` say what was
        written, or why not.

        ``edges_s`` are latencies in seconds that the histograms need as exact edges, by family
        (objectives and measured limits); an engine without such a setting ignores them.
        """
