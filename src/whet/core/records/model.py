"""What a checkpoint is: read from its files, never from its name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerIdentity:
    """Two tokenizers are the same if and only if ``sha256`` is equal.

    The hash covers the vocabulary with ids, added tokens with their flags, the merges, normalizer,
    pre-tokenizer, decoder and the begin and unknown tokens. ``chat_template_sha256`` and
    ``eos_token_ids`` are separate, because a draft model needs neither.
    """

    vocab_size: int
    sha256: str
    chat_template_sha256: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeights:
    """The stored weights, as the tensors' names, dtypes and shapes show them.

    ``scheme`` is ``16bit``, ``32bit``, ``W4A16``, ``W8A16``, ``W8A8-INT8``, ``FP8`` or ``mixed``.
    ``bits_per_weight`` counts every stored byte of the decoder's linear layers, scales included.
    """

    scheme: str
    dtype: str
    group_size: int | None
    bits_per_weight: float
    quantized_modules: int
    unquantized_modules: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """A checkpoint's shape and identity. Sizes in bytes as stored on disk.

    ``parameters`` counts logical weights, not packed words; ``linear_parameters`` those of the
    decoder's linear layers, and ``linear_inputs`` the distinct input widths K of these.
    ``kv_bytes_per_token`` is at 16 bits; with multi-head latent attention (``mla``) it is one
    latent vector a layer. ``intermediate_size`` is one expert's where ``experts`` is set.
    ``testbed`` says whose answers a testbed gives: its size is that of its cost only.
    ``hub_id`` (``owner/name``) and ``commit`` are set where the checkpoint came from the hub.
    """

    path: str
    architecture: str
    parameters: int
    weight_bytes: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    tied_embeddings: bool
    kv_bytes_per_token: int
    stored: StoredWeights
    tokenizer: TokenizerIdentity
    weights_sha256: str
    linear_parameters: int | None = None
    linear_inputs: tuple[int, ...] = ()
    mla: bool = False
    experts: int | None = None
    testbed: str | None = None
    hub_id: str | None = None
    commit: str | None = None
