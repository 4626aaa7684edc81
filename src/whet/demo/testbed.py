"""The testbed: the demo pair widened to the sizes of real models, with the same answers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from whet.checkpoint.facts import TESTBED_KEY
from whet.checkpoint.shards import ShardWriter
from whet.core.errors import UsageError
from whet.core.staging import require_space, staged
from whet.core.store import write_json
from whet.core.torch_device import pick_device
from whet.core.units import GB, MIB
from whet.demo.bundled import pair_paths
from whet.demo.eagle import HEAD_ROLE, read_head, write_head
from whet.demo.shapes import Sizes, require_groups
from whet.demo.testbed_card import card_text
from whet.demo.testbed_source import (
    Role,
    SourceModel,
    WrittenModel,
    copy_tokenizer,
    new_model,
    read_source,
)
from whet.demo.widen import Widener

SHARD_BYTES: Final = 2 * GB
"""A shard is collected in memory, so this bounds the memory that is needed."""

_SLACK_BYTES: Final = 4 * MIB  # headers, configs, tokenizer and card of one model


def write_testbed(
    out: Path,
    *,
    target: Sizes,
    draft: Sizes | None = None,
    eagle3: bool = False,
    device: str | None = None,
) -> tuple[WrittenModel, ...]:
    """Write the demo target in these sizes to ``out/target``, and a draft to ``out/draft``.

    ``eagle3`` also writes a head that proposes what the bundled draft proposes, to ``out/eagle3``.

    ``out`` appears only when it is complete. Tensors are made on ``device``: ``cpu``, ``cuda``, or
    by default the first GPU. Raises ``UsageError`` for sizes that are too small for the pair and
    for an ``out`` that is not empty, ``StorageError`` where the disk is too small.
    """
    if draft is not None and draft.vocabulary != target.vocabulary:
        raise UsageError(
            "target and draft must have the same vocabulary size; give both the same one"
        )
    where = pick_device(device)
    roles: tuple[Role, Role] = ("target", "draft")
    sources = []
    for role, folder, sizes in zip(roles, pair_paths(), (target, draft), strict=True):
        if sizes is not None:
            require_groups(sizes, role)
            sources.append(read_source(folder, sizes, role=role))
    head = read_head(pair_paths()[1], target) if eagle3 else None
    needed = sum(source.size_bytes + _SLACK_BYTES for source in sources)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not empty; choose another folder or move it away")
    needed += 0 if head is None else head.size_bytes + _SLACK_BYTES
    require_space(out, needed, "the testbed")
    with staged(out) as stage:
        written = [write_model(source, stage.folder / source.role, where) for source in sources]
        if head is not None:
            written.append(write_head(head, stage.folder / HEAD_ROLE, where))
        stage.keep()
    return tuple(replace(each, folder=out / each.role) for each in written)


def write_model(
    source: SourceModel, folder: Path, device: torch.device, *, shard_bytes: int = SHARD_BYTES
) -> WrittenModel:
    """Write one widened model to the new ``folder``: shards, configs, tokenizer and card.

    Needs memory for one shard of at most ``shard_bytes`` (more where one tensor is larger), and for
    one tensor on the device. ``InfeasibleError`` where that tensor does not fit on the GPU.
    """
    start = time.perf_counter()
    with new_model(folder, source.role, device):
        _write_weights(source, folder, device, shard_bytes)
        _write_beside(source, folder)
    return WrittenModel(
        folder=folder,
        role=source.role,
        sizes=source.widening.wide,
        parameters=source.widening.wide.parameters(),
        size_bytes=source.size_bytes,
        seconds=time.perf_counter() - start,
    )


def _write_weights(source: SourceModel, folder: Path, device: torch.device, limit: int) -> None:
    small = load_file(source.folder / "model.safetensors", device=str(device))
    widener = Widener(small, source.widening, salt=source.role)
    writer = ShardWriter(folder, shard_bytes=limit)
    for name, _ in source.widening.shapes():
        writer.add(name, widener.make(name).cpu())
    writer.finish()


def _write_beside(source: SourceModel, folder: Path) -> None:
    """The configs, the tokenizer's files byte for byte, and the card."""
    copy_tokenizer(source.folder, folder)
    wide = source.widening.wide
    sizes = {
        "hidden_size": wide.hidden,
        "num_hidden_layers": wide.layers,
        "num_attention_heads": wide.heads,
        "num_key_value_heads": wide.kv_heads,
        "head_dim": wide.head_dim,
        "intermediate_size": wide.intermediate,
        "vocab_size": wide.vocabulary,
        "tie_word_embeddings": wide.tied,
        "rms_norm_eps": source.widening.wide_epsilon,
    }
    mark = {
        "of": f"the {source.role} of whet's demo pair, widened",
        "weights_sha256": source.sha256,
        **{key: source.config[key] for key in sizes if key in source.config},
    }
    write_json(folder / "config.json", {**source.config, **sizes, TESTBED_KEY: mark})
    positions = int(source.config["max_position_embeddings"])
    text = card_text(source.role, source.widening, source.sha256, positions=positions)
    (folder / "MODEL_CARD.md").write_text(text, encoding="utf-8")
