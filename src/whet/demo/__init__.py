"""The bundled model pair, the text that it speaks, and the files of the demo run."""

from whet.demo.inputs import pair_paths, write_inputs, write_pool
from whet.demo.spec import write_long_spec, write_spec

__all__ = ["pair_paths", "write_inputs", "write_long_spec", "write_pool", "write_spec"]
