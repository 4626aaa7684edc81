"""Deployment files of a variant, rendered from its resolved engine record."""

from __future__ import annotations

from whet.deploy.write import write_deployment

__all__ = ["write_deployment"]
