"""What a checkpoint is, told from its files: shape, stored weights, tokenizer."""

from whet.checkpoint.headers import TensorHeader, read_headers

__all__ = ["TensorHeader", "read_headers"]
