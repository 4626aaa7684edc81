"""The platforms that ``whet deploy`` writes for: a folder of templates and its ``target.yaml``."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict

from whet.core.errors import UsageError
from whet.core.names import did_you_mean

_RECORD: Final = "target.yaml"


class Target(BaseModel):
    """One platform, as its ``target.yaml`` describes it.

    ``start``, ``monitoring`` and ``rollback`` are shell commands in which ``{folder}``, ``{keys}``,
    ``{previous}``, ``{name}`` and ``{namespace}`` are replaced by shell words. ``monitoring`` is
    None where Prometheus and Grafana are the platform's own. ``cluster``: it is Kubernetes.
    ``model_name`` is the pattern of the names that it can serve.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    cluster: bool = False
    start: tuple[str, ...]
    rollback: str
    monitoring: str | None = None
    model_name: re.Pattern[str] = re.compile(".*", re.DOTALL)


def _templates() -> Traversable:
    return resources.files("whet.deploy").joinpath("templates")


TARGETS: Final = tuple(
    sorted(item.name for item in _templates().iterdir() if item.joinpath(_RECORD).is_file())
)
"""The names of all targets."""


@cache
def get_target(name: str) -> Target:
    """Return the target of that name; ``UsageError`` for an unknown one."""
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise UsageError(f"unknown target {name!r}{did_you_mean(name, TARGETS)} (known: {known})")
    text = _templates().joinpath(name, _RECORD).read_text(encoding="utf-8")
    return Target.model_validate(yaml.safe_load(text))
