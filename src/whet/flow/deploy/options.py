"""Options of ``whet deploy``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from whet.core.errors import UsageError
from whet.core.server_url import split_server_url
from whet.deploy.render import TARGETS, get_target
from whet.flow.run.options import OutputDir

_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class DeployOptions:
    """What is deployed, where, and how it is watched."""

    target: Annotated[str, Parameter(help=f"Platform: {', '.join(TARGETS)}.")] = "compose"
    variant: str | None = None
    """Variant to deploy. Default: the recommended one."""
    output_dir: OutputDir = Path("deployment")
    """Folder of the bundle. An earlier bundle in it is kept in previous/."""
    image_tag: str | None = None
    """Tag of the engine's image. Default: the version that was measured."""
    namespace: str | None = None
    """Kubernetes namespace. Default: default."""
    scrape_interval: float = 15.0
    """Seconds between two scrapes of the metrics. Alert windows grow with it."""

    webhook: str | None = None
    """URL that Alertmanager posts alerts to. Default: alerts are only shown."""

    def refuse_misfits(self) -> None:
        """``UsageError`` for a value that no target can take."""
        if self.image_tag is not None and _TAG.fullmatch(self.image_tag) is None:
            raise UsageError(
                f"--image-tag {self.image_tag!r} is not a tag", fix="name one such as v0.32.0"
            )
        target = get_target(self.target)
        if self.namespace is not None and not target.cluster:
            raise UsageError(
                "--namespace belongs to Kubernetes", fix=f"leave it out with {self.target}"
            )
        if self.webhook is not None:
            if target.monitoring is None:
                raise UsageError(
                    "--webhook belongs to compose", fix="on Kubernetes Alertmanager is its own"
                )
            split_server_url(self.webhook, "--webhook", query=True)
        if self.namespace is not None and _NAMESPACE.fullmatch(self.namespace) is None:
            raise UsageError(
                f"--namespace {self.namespace!r} is not a Kubernetes name",
                fix="use lower-case letters, digits and '-', at most 63",
            )
        if not 1 <= self.scrape_interval <= _SLOWEST_SCRAPE_S:
            raise UsageError(
                f"--scrape-interval must be from 1 to {_SLOWEST_SCRAPE_S} seconds "
                f"(got {self.scrape_interval:g})"
            )


_SLOWEST_SCRAPE_S: Final = 120
"""Prometheus takes a series that was not scraped for 5 minutes as gone."""
