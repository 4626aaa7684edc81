"""``whet demo``: the main job on the bundled pair, on this machine; and the pair made large."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from whet.cli.options import OutputOptions, print_line
from whet.cli.run.run import execute
from whet.core.names import require_name
from whet.core.spec import load_spec
from whet.core.units import GB, human_duration
from whet.flow.run.options import OutputDir, RunOptions

_SIZES = "Sizes of the target (Default: those of --shape)"
_Size = Annotated[int | None, Parameter(group=_SIZES, validator=Number(gte=1))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """Which demo, and where it is stored."""

    output_dir: OutputDir = Path("runs")
    """Directory for run output."""
    name: str | None = None
    """Name of the run. Default: demo, or demo-long."""
    long: bool = False
    """Use the pair at 0.3B parameters, where weights dominate a step. Takes about an hour."""
    resume: bool = False
    """Continue an interrupted run."""


def demo(*, options: DemoOptions = DemoOptions(), output: OutputOptions = OutputOptions()) -> None:
    """Run a full example on a tiny bundled model, no GPU (about 15 minutes on 2 cores)."""
    from whet.demo import write_long_spec, write_spec

    name = require_name(options.name or ("demo-long" if options.long else "demo"), "--name")
    spec_file = options.output_dir / f"{name}.yaml"
    if options.long:
        write_long_spec(spec_file, _long_pair(options.output_dir / f"{name}-pair"))
    else:
        write_spec(spec_file)
    execute(
        load_spec(spec_file),
        options.output_dir / name,
        options=RunOptions(resume=options.resume),
        output=output,
        source=spec_file.read_bytes(),
    )


def _long_pair(folder: Path) -> Path:
    """The 0.3B testbed with its draft in ``folder``, written where it is missing."""
    from whet.demo.shapes import find_sizes
    from whet.demo.testbed import write_testbed

    if not (folder / "draft" / "config.json").exists():
        print_line(f"Writing the pair at 0.3B parameters to {folder}")
        write_testbed(folder, target=find_sizes("0.3b"), draft=find_sizes("0.03b"))
    return folder.resolve()


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


def write_testbed_command(
    out: Annotated[Path, Parameter(help="Folder to write; absent or empty.")],
    /,
    *,
    options: TestbedOptions = TestbedOptions(),
) -> None:
    """Write the demo pair in the shape of large models: their cost, the demo pair's answers.

    Such a pair shows what a lever is worth at that size, with true answers and a true acceptance
    rate. It does not show how a real model of that size tolerates 4 bits.
    """
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
    for made in write_testbed(
        out, target=target, draft=draft, eagle3=options.eagle3, device=options.device
    ):
        print_line(
            f"{made.folder}: {made.parameters / 1e9:.2f} B parameters, "
            f"{made.size_bytes / GB:.2f} GB, {human_duration(made.seconds)} ({made.sizes.text})"
        )
    second = f" --draft {out / 'draft'}" if draft is not None else ""
    print_line(f"Next: whet init whet.yaml --model {out / 'target'}{second}")
    if options.eagle3:
        head = f"{{method: eagle3, draft: {out / 'eagle3'}}}"
        print_line(f"and in a variant: speculation: {head}")
