"""``whet init``: a commented spec to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import print_line
from whet.core.errors import UsageError
from whet.core.store import is_special, write_atomic
from whet.flow.init.options import InitOptions


def init(
    path: Annotated[Path, Parameter(help="File to write.")] = Path("whet.yaml"),
    /,
    *,
    options: InitOptions = InitOptions(),
) -> None:
    """Write whet.yaml: from your request log, or a commented one to fill in."""
    if path.exists() and not is_special(path):
        raise UsageError(f"{path} exists; name another file or move it away")
    if options.traffic is not None:
        from whet.flow.init.spec import first_spec

        made = first_spec(options, path)
        write_atomic(path, made.text.encode())
        for line in made.lines:
            print_line(line)
        return
    if options.device is not None:
        raise UsageError("--device is for a spec from your log; give --traffic LOG too")
    text = template(model=options.model, draft=options.draft)
    folder = path.parent / Path(options.model).expanduser()
    if folder.is_dir():
        from whet.flow.init.template import fit_template

        text, sentence = fit_template(text, folder)
        if sentence is not None:
            print_line(sentence)
    write_atomic(path, text.encode())
    print_line(
        f"Wrote {path}. Next: set model.target and hardware.price_usd_per_hour, then run: "
        f"whet check {path}"
    )


def template(*, model: str, draft: str | None) -> str:
    """The commented spec for a model; without a draft the speculative variants use n-grams."""
    text = (resources.files("whet.cli") / "whet.yaml").read_text(encoding="utf-8")
    draft_line = f"{'' if draft else '# '}draft: {draft or './draft'}"
    draft_line = f"{draft_line:<25} # draft model with the same tokenizer, ids included"
    method = "draft_model" if draft else "ngram"
    return text.format(target=model, draft=draft_line, method=method)
