"""Deployment files of a variant, rendered from its engine's plan."""

from __future__ import annotations

from whet.deploy.render import SCRIPT, Site, render, render_script, site_name
from whet.deploy.target import TARGETS
from whet.deploy.write import commented, write_deployment, write_file

__all__ = [
    "SCRIPT",
    "TARGETS",
    "Site",
    "commented",
    "render",
    "render_script",
    "site_name",
    "write_deployment",
    "write_file",
]
