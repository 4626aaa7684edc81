"""``whet init``: a commented spec to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from whet.cli.options import print_line
from whet.core.errors import UsageError
from whet.core.quote import shell_word, yaml_scalar
from whet.core.store import is_special, write_atomic
from whet.flow.init.options import InitOptions

_PRICE: Final = (2.95, "H100 SXM on demand, 2026; put your own")
"""Dollars an hour, and where from, until a device is named."""


def init(
    path: Annotated[Path, Parameter(help="File to write.")] = Path("whet.yaml"),
    /,
    *,
    options: InitOptions = InitOptions(),
) -> None:
    """Write whet.yaml: from your request log, or a commented one to fill in."""
    if path.exists() and not is_special(path):
        raise UsageError(f"{path} exists", fix="name another file or move it away")
    if options.traffic is not None:
        from whet.flow.init.spec import first_spec

        text, lines = first_spec(options, path)
        write_atomic(path, text)
        for line in lines:
            print_line(line)
        return
    options.require_models()
    given = {
        "--current": options.current,
        "--head": options.head,
        "--checkpoint": options.checkpoint,
    }
    for name in (name for name, value in given.items() if value):
        raise UsageError(f"{name} is for a spec from your log", fix="give --traffic LOG too")
    price = _PRICE
    if options.device is not None:
        from whet.flow.init.spec import planned_price

        price = planned_price(options.device)
    write_atomic(path, template(options.model or "./model", options.draft, price))
    word = shell_word(str(path))
    unset = [] if options.model else ["model.target"]
    there = f" --device {shell_word(options.device)}" if options.device else ""
    unset += [] if options.device else ["hardware.price_usd_per_hour"]
    then = f"set {' and '.join(unset)}, then run: " if unset else ""
    print_line(f"Wrote {word}. Next: {then}whet check {word}{there}")


def template(model: str, draft: str | None, price: tuple[float, str] = _PRICE) -> str:
    """The commented spec for a model; without a draft the speculative variants use n-grams."""
    text = (resources.files("whet.cli") / "whet.yaml").read_text(encoding="utf-8")
    method = "draft_model" if draft else "ngram"
    line = f"{'' if draft else '# '}draft: {yaml_scalar(draft or './draft')}"
    line = f"{line:<25} # draft model with the same tokenizer, ids included"
    usd, source = price[0], yaml_scalar(price[1])
    return text.format(
        target=yaml_scalar(model), draft=line, method=method, price=usd, source=source
    )
