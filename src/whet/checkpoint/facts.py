"""A checkpoint folder → ``ModelFacts``, from its config and its tensors, which must agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from whet.checkpoint.config import ModelShape, read_shape
from whet.checkpoint.files import read_json, require_regular
from whet.checkpoint.headers import TensorHeader, hash_weights, read_headers
from whet.checkpoint.hub import is_hollow
from whet.checkpoint.stored import (
    Inventory,
    require_true_claim,
    summarize,
    take_inventory,
    with_activations,
)
from whet.checkpoint.tokenizer import tokenizer_identity
from whet.core.errors import CheckpointError
from whet.core.hub import snapshot_of
from whet.core.records.model import ModelFacts, TokenizerIdentity

TESTBED_KEY: Final = "whet_testbed"
"""The key of config.json that marks a testbed; quantizing copies it."""
_AGAIN = "download the checkpoint again"
CONVERT: Final = "convert them (convert_…_to_hf.py of transformers), or give a copy in its layout"
_FOREIGN: Final = re.compile(r"^(module|_orig_mod|base_model|blk)\.|\.attention\.wq\.|linear_qkv\.")
"""Names by wrappers of torch and peft, llama.cpp, Meta and Megatron."""
_EMBEDDING: Final = re.compile(r"^(?!.*(?:vision|visual|audio|image)).*(?:emb\w*|wte)\.q?weight")
_TIE: Final = (
    "read and write it with transformers, which takes the stored lm_head that is tied to it"
)


def read_facts(path: Path, *, tokenizer: bool = True) -> ModelFacts:
    """The facts of the checkpoint in ``path``; no tensor is loaded.

    Without ``tokenizer`` only the size of the vocabulary is stated, which needs no tokenizer.json.
    ``weights_sha256`` is empty for a folder that has headers without weights. Raises
    ``CheckpointError`` where a file is missing, truncated or foreign, and where config.json says
    one thing and the tensors another. Code that the checkpoint brings (``auto_map``) is never run.
    """
    require_regular(path)
    shape = read_shape(path)
    size = TokenizerIdentity(vocab_size=shape.vocab_size)
    headers = read_headers(path)
    if "fc.weight" in headers and not (path / "tokenizer.json").exists():
        raise CheckpointError(
            f"{path} is a speculation head without a tokenizer",
            fix="copy its target's tokenizer.json and tokenizer_config.json into it",
        )
    inventory = take_inventory(
        headers,
        tied=shape.tied_embeddings,
        layers=shape.blocks,
        hidden=shape.hidden_size,
        experts_per_token=shape.experts_per_token,
    )
    _require_embeddings(path, shape, headers)
    _require_layers(path, shape, inventory)
    tied = _tied(path, shape, inventory)
    stored = with_activations(shape.claim, summarize(inventory))
    require_true_claim(path, shape.claim, stored)
    # One token is multiplied with ``n`` of the experts of a layer.
    n, counts = shape.experts_per_token, inventory.experts.items()
    idle = sum((1 - (n or 0) / count) * parameters for count, parameters in counts)
    snapshot, mark = snapshot_of(path), read_json(path / "config.json").get(TESTBED_KEY)
    return shape.facts(
        path,
        parameters=inventory.parameters,
        weight_bytes=sum(header.size_bytes for header in headers.values()),
        tied_embeddings=tied,
        stored=stored,
        tokenizer=tokenizer_identity(path) if tokenizer else size,
        weights_sha256="" if is_hollow(path) else hash_weights(headers),
        linear_parameters=sum(linear.parameters for linear in inventory.linears),
        linear_inputs=tuple(sorted({linear.inputs for linear in inventory.linears} - {0})),
        active_parameters=round(inventory.parameters - idle) if inventory.experts and n else None,
        expert_parameters=sum(inventory.experts.values()) or None,
        mtp_parameters=inventory.mtp_parameters,
        mtp_bytes=inventory.mtp_bytes,
        testbed=str(mark.get("of", "another model")) if isinstance(mark, dict) else None,
        hub_id=None if snapshot is None else snapshot.hub_id,
        commit=None if snapshot is None else snapshot.commit,
    )


def _require_layers(path: Path, shape: ModelShape, inventory: Inventory) -> None:
    missing = next((layer for layer in range(shape.blocks) if layer not in inventory.layers), None)
    if missing is not None:
        raise CheckpointError(
            f"{path / 'config.json'} says {shape.blocks} layers, but layer {missing} has no "
            "tensors",
            fix=_AGAIN,
        )
    if not inventory.linears:
        raise CheckpointError(
            f"{path} has no linear layers",
            fix="give a decoder-only model in the Hugging Face layout",
        )


def _require_embeddings(path: Path, shape: ModelShape, headers: Mapping[str, TensorHeader]) -> None:
    """Check that there is an input embedding, and its shape; a speculation head needs none."""
    if foreign := next(filter(_FOREIGN.search, headers), None):
        raise CheckpointError(
            f"the tensors of {path} do not have transformers' names ({foreign} first)", fix=CONVERT
        )
    expected = (shape.vocab_size, shape.hidden_size)
    for name, header in headers.items():
        text_side = name.endswith("embed_tokens.weight") and "vision" not in name
        if text_side and header.shape != expected:
            raise CheckpointError(
                f"{name} of {path} has the shape {list(header.shape)}, but config.json says "
                f"{list(expected)} (vocabulary, hidden size)",
                fix="restore the config.json of these weights",
            )
    if "fc.weight" not in headers and not any(map(_EMBEDDING.search, headers)):
        tied = shape.tied_embeddings and any(name.endswith("lm_head.weight") for name in headers)
        raise CheckpointError(
            f"{path} has no input embedding (embed_tokens.weight of {list(expected)})",
            fix=_TIE if tied else _AGAIN,
        )


def _tied(path: Path, shape: ModelShape, inventory: Inventory) -> bool:
    """Whether the output head is the embedding; where config.json does not say, the tensors do."""
    if shape.tied_embeddings is None:
        return not inventory.has_head
    if not shape.tied_embeddings and not inventory.has_head:
        raise CheckpointError(
            f"{path} has no lm_head, and its config.json says that the head is not tied to the "
            "embedding",
            fix=_AGAIN,
        )
    return shape.tied_embeddings
