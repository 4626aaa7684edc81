"""``whet demo``: the main job on the bundled pair, on this machine; and the pair made large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.run import Output, execute
from whet.core.names import require_name
from whet.core.spec import load_spec
from whet.core.units import GB, human_duration

group = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group.callback()(demo)
    group.command("testbed")(make_testbed)
    app.add_typer(group, name="demo")


def demo(
    context: typer.Context,
    output_dir: Output = Path("runs"),
    name: Annotated[
        str | None, typer.Option(help="Name of the run; demo or demo-long by default.")
    ] = None,
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            help="On the pair at 0.3B parameters, where levers show their effects; an hour or so.",
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
) -> None:
    """Run the whole story on the bundled pair with real vLLM; about fifteen minutes on 2 cores."""
    if context.invoked_subcommand is not None:
        return
    from whet.demo import write_long_spec, write_spec

    name = require_name(name or ("demo-long" if long else "demo"), "the run's name")
    spec_file = output_dir / f"{name}.yaml"
    if long:
        write_long_spec(spec_file, _long_pair(output_dir / f"{name}-pair"))
    else:
        write_spec(spec_file)
    execute(load_spec(spec_file), output_dir / name, resume=resume, spec_file=spec_file)


def _long_pair(folder: Path) -> Path:
    """The 0.3B testbed with its draft in ``folder``, made where it is not there yet."""
    from whet.demo.shapes import find_sizes
    from whet.demo.testbed import write_testbed

    if not (folder / "draft" / "config.json").exists():
        typer.echo(f"Writing the pair at 0.3B parameters to {folder}")
        write_testbed(folder, target=find_sizes("0.3b"), draft=find_sizes("0.03b"))
    return folder.resolve()


_SIZES = "Any other size of the target"


def make_testbed(
    out: Annotated[Path, typer.Argument(help="The folder to write; absent or empty.")],
    shape: Annotated[
        str, typer.Option(help="The target: 0.03b, 0.3b, 1b, 3b, 7b (8b) or 13b.")
    ] = "7b",
    draft: Annotated[
        str | None,
        typer.Option(
            help="The draft: a name again, or hidden,layers,heads,kv-heads,intermediate; "
            "none by default."
        ),
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, rich_help_panel=_SIZES)] = None,
    layers: Annotated[int | None, typer.Option(min=1, rich_help_panel=_SIZES)] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Of 128 channels.", rich_help_panel=_SIZES)
    ] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, rich_help_panel=_SIZES)] = None,
    intermediate: Annotated[int | None, typer.Option(min=1, rich_help_panel=_SIZES)] = None,
    vocab: Annotated[
        int | None,
        typer.Option(min=1, help="Pad the vocabulary of both: 128256. Kept at 4096 by default."),
    ] = None,
    eagle3: Annotated[
        bool,
        typer.Option(
            "--eagle3", help="Also an EAGLE-3 head for the target, which drafts as the draft does."
        ),
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; the first GPU if there is one.")
    ] = None,
) -> None:
    """Write the demo pair in the shape of large models: their cost, the demo pair's answers.

    Such a pair shows what a lever is worth at that size, with true answers and a true acceptance
    rate. It says nothing about how a real model of that size bears 4 bits.
    """
    from whet.demo.shapes import find_sizes
    from whet.demo.testbed import write_testbed

    given: dict[str, Any] = {
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "intermediate": intermediate,
        "vocabulary": vocab,
    }
    change = {key: value for key, value in given.items() if value is not None}
    small = None
    if draft is not None:
        small = find_sizes(draft)
        small = small if vocab is None else replace(small, vocabulary=vocab)
    target = replace(find_sizes(shape), **change)
    for made in write_testbed(out, target=target, draft=small, eagle3=eagle3, device=device):
        typer.echo(
            f"{made.folder}: {made.parameters / 1e9:.2f} B parameters, "
            f"{made.size_bytes / GB:.2f} GB, {human_duration(made.seconds)} ({made.sizes.text})"
        )
    second = f" --draft {out / 'draft'}" if small is not None else ""
    typer.echo(f"Next: whet init whet.yaml --model {out / 'target'}{second}")
    if eagle3:
        head = f"{{method: eagle3, draft: {out / 'eagle3'}}}"
        typer.echo(f"and in a variant: speculation: {head}")
