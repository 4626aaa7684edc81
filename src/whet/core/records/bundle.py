"""What a deployment folder deploys, so that a later command knows it."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """``bundle.json``: the variant of a run, and how it is deployed.

    ``model`` is the name in requests. ``checkpoint`` is a folder, or a hub id with its
    ``revision``; ``weights_sha256`` is None where the run has no hash of it. ``device`` is the kind
    that measured. ``name`` is that of
    the target's resources, in ``namespace`` on Kubernetes; ``replicas`` servers take the run's
    demand. ``written_at`` is UTC in ISO 8601, ``serve_line`` that of ``serve.sh``. ``limits`` are
    the decision's of this variant.
    """

    run: str
    variant: str
    load: Load
    engine: str
    engine_version: str
    image: str
    model: str
    checkpoint: str
    revision: str | None
    weights_sha256: str | None
    target: str
    device: str
    name: str
    namespace: str | None
    replicas: int
    written_at: str
    serve_line: str
    limits: tuple[str, ...] = ()
