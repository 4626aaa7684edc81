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
    sha256: str = ""
    chat_template_sha256: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeights:
    """The stored weights, as the tensors' names, dtypes and shapes show them.

    ``scheme`` is ``16bit``, ``32bit``, ``W4A16``, ``W4A8_FP8``, ``W8A16``, ``W8A8-INT8``, ``FP8``,
    ``NVFP4``, ``NVFP4A16``, ``MXFP4``, ``MXFP4-W4A4``, ``NF4`` or ``mixed``. NVFP4 has scales for
    4-bit activations; of MXFP4 and 4-bit integers config.json says how activations are rounded.
    ``bits_per_weight`` counts every stored byte of the decoder's linear layers, scales included.
    """

    scheme: str
    dtype: str
    group_size: int | None
    bits_per_weight: float
    quantized_modules: int
    unquantized_modules: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KvLayers:
    """Layers whose KV cache has one shape.

    ``bytes_per_token`` is one layer's at 16 bits, and ``kv_heads`` over how many devices it can be
    split. Only the last ``window`` tokens are kept, or those of the current chunk of so many
    (``chunked``); None keeps all.
    """

    layers: int
    kv_heads: int
    bytes_per_token: int
    window: int | None = None
    chunked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StateLayers:
    """Layers that keep a state of fixed size: Mamba, linear attention, short convolutions.

    ``bytes_per_request`` is one layer's. ``half_bytes`` of it are a recurrence in 16 bits, which a
    CPU keeps in 32. Where prefixes are cached a request has ``cached`` states at once.
    """

    layers: int
    bytes_per_request: int
    half_bytes: int
    cached: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """A checkpoint's shape and identity. Sizes in bytes as stored on disk.

    ``parameters`` counts logical weights, not packed words; ``linear_parameters`` those of the
    decoder's linear layers, and ``linear_inputs`` the distinct input widths K of these.
    ``active_parameters`` are those that one token uses of a mixture of experts, and
    ``expert_parameters`` those of all its routed experts. Layers for multi-token prediction are in
    ``mtp_parameters`` instead; engines load their ``mtp_bytes`` (a part of ``weight_bytes``) only
    where they speculate with them. ``kv_bytes_per_token`` is at 16 bits, of the layers that keep
    every token; with multi-head latent attention (``mla``) it is one latent vector a layer.
    ``kv_layers`` are all layers with a KV cache by their shape, ``states`` those with a state
    instead or beside it. ``intermediate_size`` is one expert's where ``experts`` is set.
    ``testbed`` says whose answers a testbed gives: its size is that of its cost only. ``hub_id``
    (``owner/name``) and ``commit`` are set where the checkpoint came from the hub.
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
    active_parameters: int | None = None
    expert_parameters: int | None = None
    mtp_parameters: int = 0
    mtp_bytes: int = 0
    kv_layers: tuple[KvLayers, ...] = ()
    states: StateLayers | None = None

    def kv_bytes(self, tokens: int) -> int:
        """Bytes that a request of ``tokens`` keeps, at 16 bits and before blocks are filled up."""
        bounded = sum(
            each.layers * each.bytes_per_token * min(each.window, tokens)
            for each in self.kv_layers
            if each.window is not None
        )
        states = self.states
        fixed = 0 if states is None else states.layers * states.bytes_per_request
        return self.kv_bytes_per_token * tokens + bounded + fixed
