"""Files to run a variant elsewhere, rendered from the record that says all that was set."""

from __future__ import annotations

from whet.deploy.write import write_deployment

__all__ = ["write_deployment"]
