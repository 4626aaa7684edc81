"""``whet init``: a commented spec to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from whet.core.errors import UsageError
from whet.core.store import write_atomic


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("whet.yaml"),
    model: Annotated[
        str, typer.Option(help="The 16-bit checkpoint: a folder or a hub id.")
    ] = "./model",
    draft: Annotated[
        str | None, typer.Option(help="A draft model with the same tokenizer.")
    ] = None,
) -> None:
    """Write a commented whet.yaml."""
    if path.exists():
        raise UsageError(f"{path} exists; name another file or move it away")
    text = template(model=model, draft=draft)
    write_atomic(path, text.encode())
    typer.echo(f"wrote {path}; then: whet check {path} && whet run {path}")


def template(*, model: str, draft: str | None) -> str:
    """The commented spec for a model; without a draft the speculative variants use n-grams."""
    text = (resources.files("whet.cli") / "whet.yaml").read_text(encoding="utf-8")
    draft_line = (
        f"draft: {draft}" if draft else "# draft: ./draft        # same tokenizer, ids included"
    )
    method = "draft_model" if draft else "ngram"
    return text.format(target=model, draft=draft_line, method=method)
