"""Facts of a checkpoint, from its files: shape, stored weights, tokenizer."""

from whet.checkpoint.doubts import checkpoint_doubts, no_template
from whet.checkpoint.facts import read_facts
from whet.checkpoint.headers import TensorHeader, hash_weights, read_headers
from whet.checkpoint.hub import locate, locate_without_weights
from whet.checkpoint.lora import lora_rank
from whet.checkpoint.tokenizer import load_tokenizer, tokenizer_difference, tokenizer_identity

__all__ = [
    "TensorHeader", "checkpoint_doubts", "hash_weights", "load_tokenizer", "locate",
    "locate_without_weights", "lora_rank", "no_template", "read_facts", "read_headers",
    "tokenizer_difference", "tokenizer_identity",
]  # fmt: skip
