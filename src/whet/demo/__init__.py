"""The bundled model pair and the specs of the demo runs."""

from whet.demo.bundled import pair_paths
from whet.demo.spec import write_long_spec, write_spec

__all__ = ["pair_paths", "write_long_spec", "write_spec"]
