"""The testbed: the demo pair widened to the sizes of real models, with the same answers.

    python -m lab.testbed SIZE OUT [--draft SIZE] [--eagle3] [--layers N …] [--vocab N] [--device D]

It shows what a lever is worth at that size, with true answers and a true acceptance rate. It does
not show how a real model of that size tolerates 4 bits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from lab.eagle import HEAD_ROLE, read_head, write_head
from lab.sizes import SHAPES, Sizes, find_sizes, require_groups
from lab.testbed_model import (
    Role,
    SourceModel,
    WrittenModel,
    copy_tokenizer,
    new_model,
    read_source,
)
from lab.widen import Widener, Widening
from whet._version import __version__
from whet.checkpoint.facts import TESTBED_KEY
from whet.checkpoint.shards import ShardWriter
from whet.core.errors import UsageError, WhetError
from whet.core.quote import shell_words, yaml_scalar
from whet.core.staging import require_space, staged
from whet.core.store import write_json
from whet.core.torch_device import pick_device
from whet.core.units import GB, MIB, human_duration
from whet.demo import pair_paths

SHARD_BYTES: Final = 2 * GB
"""A shard is collected in memory, so this bounds the memory that is needed."""

_CHANGES: Final = {
    "hidden": "width of the hidden state",
    "layers": "number of layers",
    "heads": "attention heads of 128 channels",
    "kv_heads": "key and value heads",
    "intermediate": "width of the MLP",
}
_SLACK_BYTES: Final = 4 * MIB  # headers, configs, tokenizer and card of one model

_CARD: Final = """\
# A testbed, not a model

The {role} of whet's demo pair, widened. It costs what a model of its size costs, and answers what
the demo {role} answers. Made by whet {version}; nothing was trained.

| | parameters | sizes |
|---|---|---|
| this testbed | {parameters:,} | {text} |
| the demo {role} | {small:,} | {small_text} |

| of its weights | share |
|---|---|
| are the demo {role}'s own (norm weights rescaled) | {own:.2%} |
| are zero, so that nothing else changes the output | {zeros:.1%} |
| are random, at the scale of the real ones, so that kernels and quantizers get data | {rest:.1%} |

Source weights: SHA-256 `{sha256}` (over the tensors in the order of their names).

## What can be measured on it

- Speed, memory, acceptance of a draft and task scores can be measured on it: the work of a step is
  that of the whole shape, and the tokens are true answers. A table made on it must say so.
- **It does not show how a real model of this size tolerates 4 bits**, or 8: its answers depend on
  the few weights that are the demo model's own. Its quality after quantization is that of a
  demo model whose weights are stored beside random ones.
- Most weights of `o_proj` and `down_proj` are zero. Dense kernels take the same time for them, yet
  a GPU draws less power on zeros and may clock higher, and a sparse or compressed store would look
  better than it is.
- Its language is a made-up support desk of 4,096 tokens. Contexts end at {positions:,} tokens, and
  the training text ended at 1,536.
{vocabulary}"""

_CARD_VOCABULARY: Final = """\
- The vocabulary is padded from {narrow:,} to {wide:,} entries. An added entry is never chosen: a
  channel that is zero otherwise holds a constant, which gives every added entry a large negative
  logit.
"""


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
    """Write the configs, the tokenizer's files byte for byte, and the card."""
    copy_tokenizer(source.folder, folder)
    sizes = source.widening.wide.config() | {"rms_norm_eps": source.widening.wide_epsilon}
    mark = {
        "of": f"the {source.role} of whet's demo pair, widened",
        "weights_sha256": source.sha256,
        **{key: source.config[key] for key in sizes if key in source.config},
    }
    write_json(folder / "config.json", {**source.config, **sizes, TESTBED_KEY: mark})
    (folder / "MODEL_CARD.md").write_text(_card(source, source.widening), encoding="utf-8")


def _card(source: SourceModel, widening: Widening) -> str:
    own, zeros = widening.shares()
    narrow, wide = widening.narrow, widening.wide
    padded = _CARD_VOCABULARY.format(narrow=narrow.vocabulary, wide=wide.vocabulary)
    return _CARD.format(
        role=source.role,
        text=wide.text,
        parameters=wide.parameters(),
        small=narrow.parameters(),
        small_text=narrow.text,
        version=__version__,
        own=own,
        zeros=zeros,
        rest=1 - own - zeros,
        sha256=source.sha256,
        positions=int(source.config["max_position_embeddings"]),
        vocabulary=padded if widening.padded_vocabulary else "",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the testbed, and say what it is and what comes next."""
    options = _parser().parse_args(arguments)
    out: Path = options.out
    try:
        for made in _write(options):
            print(
                f"{made.folder}: {made.parameters / 1e9:.2f} B parameters, "
                f"{made.size_bytes / GB:.2f} GB, {human_duration(made.seconds)} ({made.sizes.text})"
            )
    except WhetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    words = ["whet", "init", "whet.yaml", "--model", str(out / "target")]
    words += ["--draft", str(out / "draft")] if options.draft is not None else []
    print(f"Next: {shell_words(words)}")
    if options.eagle3:
        head = f"{{method: eagle3, draft: {yaml_scalar(str(out / HEAD_ROLE))}}}"
        print(f"and in a variant: speculation: {head}")
    return 0


def _write(options: argparse.Namespace) -> tuple[WrittenModel, ...]:
    changes = {name: getattr(options, name) for name in (*_CHANGES, "vocabulary")}
    changes = {name: value for name, value in changes.items() if value is not None}
    target = replace(find_sizes(options.size), **changes)
    draft = None if options.draft is None else find_sizes(options.draft)
    if draft is not None and options.vocabulary is not None:
        draft = replace(draft, vocabulary=options.vocabulary)
    return write_testbed(
        options.out, target=target, draft=draft, eagle3=options.eagle3, device=options.device
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lab.testbed",
        description="Write the demo pair in the shape of large models: their cost, its answers.",
    )
    add = parser.add_argument
    add("size", help=f"shape of the target: {', '.join(SHAPES)}, or five numbers")
    add("out", type=Path, help="folder to write; absent or empty")
    add("--draft", help="shape of a draft: a name, or hidden,layers,heads,kv-heads,intermediate")
    for name, what in _CHANGES.items():
        add(f"--{name.replace('_', '-')}", type=int, help=f"{what} of the target")
    add("--vocab", dest="vocabulary", type=int, help="pad the vocabulary of both (default: 4096)")
    add("--eagle3", action="store_true", help="an EAGLE-3 head too, which drafts as the draft does")
    add("--device", help="cpu, cuda or cuda:1 (default: the first GPU if there is one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
