"""The bundled model pair and the spec of the demo run."""

from whet.demo.bundled import pair_paths
from whet.demo.spec import write_spec

__all__ = ["pair_paths", "write_spec"]
