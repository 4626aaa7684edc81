"""``whet demo``: the spec of the demo run, and the testbed of large models."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from whet.core.protocols import Observer
    from whet.core.store import RunStore
    from whet.demo.testbed_source import WrittenModel

_SIZES = "Sizes of the target (Default: those of --shape)"
_Size = Annotated[int | None, Parameter(group=_SIZES, validator=Number(gte=1))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class TestbedOptions:
    """The shapes to write."""

    shape: str = "7b"
    """Shape of the target: 0.03b, 0.3b, 1b, 3b, 7b (8b) or 13b."""
    draft: str | None = None
    """Shape of a draft: one of these names, or hidden,layers,heads,kv-heads,intermediate."""
    hidden: _Size = None
    """Width of the hidden state."""
    layers: _Size = None
    """Number of layers."""
    heads: _Size = None
    """Attention heads of 128 channels."""
    kv_heads: _Size = None
    """Key and value heads."""
    intermediate: _Size = None
    """Width of the MLP."""
    vocab: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Pad the vocabulary of both models to this many tokens. Default: 4096, not padded."""
    eagle3: bool = False
    """Write an EAGLE-3 head too, which drafts the same tokens as the draft."""
    device: str | None = None
    """cpu, cuda or cuda:1. Default: the first GPU if there is one."""


def write_demo_spec(file: Path) -> None:
    """Write the spec of the demo on the bundled pair."""
    from whet.demo import write_spec

    write_spec(file)


def replay_recorded(root: Path, observer: Observer) -> RunStore:
    """Decide the recorded run again in the new folder ``root``, and return its store.

    A ``root`` that exists is decided again as it is.
    """
    from whet.core.staging import staged
    from whet.core.store import RunStore, translate_disk_errors
    from whet.demo.bundled import RECORDED
    from whet.flow.run.conclude import conclude

    if not root.exists():
        with staged(root) as stage, tarfile.open(RECORDED) as tar, translate_disk_errors(root):
            for member in tar.getmembers():
                member.name = member.name.removeprefix("run/")
                tar.extract(member, stage.folder)
            stage.keep()
    with RunStore.open(root, resume=True) as store:
        conclude(store, observer)
        return store


def write_long_demo_spec(file: Path, pair: Path, note: Callable[[str], None]) -> None:
    """Write the spec of the long demo and, in ``pair``, its 0.3B testbed where it is missing."""
    from whet.demo import write_long_spec
    from whet.demo.shapes import find_sizes
    from whet.demo.testbed import write_testbed

    if not (pair / "draft" / "config.json").exists():
        note(f"Writing the pair at 0.3B parameters to {pair}")
        write_testbed(pair, target=find_sizes("0.3b"), draft=find_sizes("0.03b"))
    write_long_spec(file, pair.resolve())


def build_testbed(out: Path, options: TestbedOptions) -> tuple[WrittenModel, ...]:
    """Write the models of these shapes to ``out``; ``UsageError`` for an unknown shape."""
    from whet.demo.shapes import find_sizes
    from whet.demo.testbed import write_testbed

    sizes = {
        name: getattr(options, name)
        for name in ("hidden", "layers", "heads", "kv_heads", "intermediate")
    }
    sizes["vocabulary"] = options.vocab
    target = replace(find_sizes(options.shape), **{k: v for k, v in sizes.items() if v is not None})
    draft = None if options.draft is None else find_sizes(options.draft)
    if draft is not None and options.vocab is not None:
        draft = replace(draft, vocabulary=options.vocab)
    return tuple(
        write_testbed(out, target=target, draft=draft, eagle3=options.eagle3, device=options.device)
    )
