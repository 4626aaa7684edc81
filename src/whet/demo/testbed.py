"""The testbed: the demo pair in the sizes of models that people serve, with the same answers."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from whet.checkpoint import hash_weights, read_headers
from whet.checkpoint.config import read_shape
from whet.checkpoint.facts import TESTBED_KEY
from whet.checkpoint.files import read_json
from whet.checkpoint.headers import BITS, INDEX
from whet.core.errors import CheckpointError, InfeasibleError, StorageError, UsageError
from whet.core.store import translate_disk_errors, write_json
from whet.core.units import GB, MIB
from whet.demo.inputs import pair_paths
from whet.demo.shapes import Sizes, require_groups
from whet.demo.staged import require_free, staged_folder
from whet.demo.testbed_card import card_text
from whet.demo.widen import Widener, Widening, source_shapes

SHARD_BYTES: Final = 2 * GB
"""A shard is held in memory while it is filled, so this bounds the memory that is needed."""

_SLACK_BYTES: Final = 4 * MIB  # headers, configs, tokenizer and card of one model


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """One model of a testbed: its folder, its role (target, draft), and what it cost."""

    folder: Path
    role: str
    sizes: Sizes
    parameters: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A small model to be widened, and what it is to become."""

    folder: Path
    role: str
    config: Mapping[str, Any]
    widening: Widening
    sha256: str
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """What the large model's tensors take on disk."""
        return self.widening.wide.parameters() * self.element_bytes


def write_testbed(
    out: Path, *, target: Sizes, draft: Sizes | None = None, device: str | None = None
) -> tuple[Made, ...]:
    """Write the demo target in these sizes to ``out/target``, and a draft to ``out/draft``.

    ``out`` appears only when all of it is whole. ``device`` is where tensors are made: ``cpu``,
    ``cuda``, or the first GPU if there is one. Raises ``UsageError`` for sizes that cannot hold
    the pair and for an ``out`` that holds something, ``StorageError`` where the disk is too small.
    """
    if draft is not None and draft.vocabulary != target.vocabulary:
        raise UsageError("target and draft need one vocabulary; give both the same size of it")
    where = pick_device(device)
    wanted = zip(("target", "draft"), pair_paths(), (target, draft), strict=True)
    sources = []
    for role, folder, sizes in wanted:
        if sizes is not None:
            require_groups(sizes, role)
            sources.append(read_source(folder, sizes, role=role))
    require_free(out, sum(source.size_bytes + _SLACK_BYTES for source in sources))
    with staged_folder(out) as stage:
        made = [write_model(source, stage / source.role, where) for source in sources]
    return tuple(replace(each, folder=out / each.role) for each in made)


def pick_device(wanted: str | None) -> torch.device:
    """The device asked for, or the first GPU, or the CPU; ``UsageError`` where it is not there."""
    available = torch.cuda.is_available()
    try:
        device = torch.device(wanted or ("cuda" if available else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"there is no device {wanted!r}; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not available):
        raise UsageError(f"the device {wanted!r} is not available here; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"there are {torch.cuda.device_count()} GPUs, and no {wanted}; use cuda")
    return device


def read_source(folder: Path, sizes: Sizes, *, role: str) -> Source:
    """The small model of ``folder`` on its way to ``sizes``.

    Raises ``CheckpointError`` where it is no Llama without biases whose head is its embedding, and
    ``UsageError`` where it does not fit into the sizes.
    """
    config, shape = read_json(folder / "config.json"), read_shape(folder)
    headers = read_headers(folder)
    narrow = Sizes(
        hidden=shape.hidden_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        intermediate=shape.intermediate_size,
        head_dim=shape.head_dim,
        vocabulary=shape.vocab_size,
        tied=bool(shape.tied_embeddings),
    )
    dtypes = {header.dtype for header in headers.values()}
    found = {name: header.shape for name, header in headers.items()}
    if not narrow.tied or found != source_shapes(narrow) or len(dtypes) != 1:
        raise CheckpointError(
            f"{folder} is no Llama of one dtype, without biases and with its head tied to its "
            "embedding; a testbed is made of the bundled demo pair"
        )
    wide = replace(sizes, tied=sizes.vocabulary == narrow.vocabulary)
    widening = Widening(narrow=narrow, wide=wide, epsilon=float(config["rms_norm_eps"]))
    widening.require_possible()
    return Source(
        folder=folder,
        role=role,
        config=config,
        widening=widening,
        sha256=hash_weights(headers),
        element_bytes=BITS[dtypes.pop()] // 8,
    )


def write_model(
    source: Source, folder: Path, device: torch.device, *, shard_bytes: int = SHARD_BYTES
) -> Made:
    """Write one widened model to the new ``folder``: shards, configs, tokenizer and card.

    One shard of at most ``shard_bytes`` (more only where one tensor is larger) is held in memory,
    and one tensor on the device. ``InfeasibleError`` where the GPU has no room for that tensor.
    """
    start = time.perf_counter()
    with translate_disk_errors(folder):
        folder.mkdir(parents=True)
        try:
            _write_weights(source, folder, device, shard_bytes)
        except torch.OutOfMemoryError as error:
            raise InfeasibleError(
                f"the {source.role}'s largest tensor has no room on {device}; free the GPU, or "
                "make it with --device cpu"
            ) from error
        _write_beside(source, folder)
    return Made(
        folder=folder,
        role=source.role,
        sizes=source.widening.wide,
        parameters=source.widening.wide.parameters(),
        size_bytes=source.size_bytes,
        seconds=time.perf_counter() - start,
    )


def _write_weights(source: Source, folder: Path, device: torch.device, limit: int) -> None:
    small = load_file(source.folder / "model.safetensors", device=str(device))
    widener = Widener(small, source.widening, salt=source.role)
    shards = list(_shards(source, limit))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        if len(shards) == 1:
            file = "model.safetensors"
        _save({name: widener.make(name).cpu() for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = {"total_size": source.size_bytes}
        write_json(folder / INDEX, {"metadata": total, "weight_map": weight_map})


def _shards(source: Source, limit: int) -> Iterator[list[str]]:
    """The names of the tensors, shard by shard."""
    names: list[str] = []
    held = 0
    for name, shape in source.widening.shapes():
        size = math.prod(shape) * source.element_bytes
        if names and held + size > limit:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        # The library reports a full disk as its own error, so the number is in the words.
        raise StorageError(
            f"cannot write {file.parent} ({error}); free some space on its disk and run again"
        ) from error
    file.chmod(0o644)  # the library leaves 0600, and a container may serve as another user


def _write_beside(source: Source, folder: Path) -> None:
    """The configs, the tokenizer's files byte for byte, and the card."""
    for path in sorted(source.folder.glob("*.json")):
        if path.name not in ("config.json", INDEX):
            shutil.copyfile(path, folder / path.name)
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
