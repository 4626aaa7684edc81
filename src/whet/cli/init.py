"""``whet init``: a commented spec to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import print_line
from whet.core.errors import UsageError
from whet.core.store import write_atomic


def init(
    path: Annotated[Path, Parameter(help="File to write.")] = Path("whet.yaml"),
    /,
    *,
    model: Annotated[str, Parameter(help="16-bit checkpoint: folder or hub id.")] = "./model",
    draft: Annotated[
        str | None, Parameter(help="Draft model with the same tokenizer. Default: n-grams draft.")
    ] = None,
) -> None:
    """Write a commented whet.yaml to start from."""
    if path.exists():
        raise UsageError(f"{path} exists; name another file or move it away")
    text = template(model=model, draft=draft)
    write_atomic(path, text.encode())
    print_line(
        f"Wrote {path}. Next: set model.target and hardware.price_usd_per_hour, then run: "
        f"whet check {path}"
    )


def template(*, model: str, draft: str | None) -> str:
    """The commented spec for a model; without a draft the speculative variants use n-grams."""
    text = (resources.files("whet.cli") / "whet.yaml").read_text(encoding="utf-8")
    draft_line = (
        f"draft: {draft}" if draft else "# draft: ./draft        # same tokenizer, ids included"
    )
    method = "draft_model" if draft else "ngram"
    return text.format(target=model, draft=draft_line, method=method)
