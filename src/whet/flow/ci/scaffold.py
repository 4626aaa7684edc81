"""``whet ci init``: a GitHub Actions workflow for a spec."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.quote import yaml_scalar
from whet.core.spec import Spec, load_spec
from whet.core.store import write_atomic
from whet.predict.hardware import planned_device

_GPU: Final = "H100 SXM"
_LENIENT: Final = " || test $? -eq 3  # the checkpoint's folder may be missing here"


def write_workflow(spec_file: Path, root: Path) -> tuple[str, ...]:
    """Write ``.github/workflows/whet.yml`` below ``root``; return what to say.

    Raises ``UsageError`` for a spec that is wrong, and where the file exists.
    """
    spec, path = load_spec(spec_file), root / ".github" / "workflows" / "whet.yml"
    if path.exists():
        raise UsageError(f"{path} exists", fix="move it away, or choose another --output-dir")
    write_atomic(path, _workflow(spec, _path(spec_file, root.resolve())))
    return (
        f"Wrote {path}",
        "Next: set GPU and the runner's labels in it, add a clone of whet at "
        f"{root / 'whet'} (git submodule add URL whet), and copy a finished run of what is "
        f"deployed to {root / 'baseline'}",
    )


def _workflow(spec: Spec, spec_path: str) -> str:
    """The template with its ``[[ ]]`` filled in; ``${{`` of foreign text is not evaluated."""
    # The spec makes local paths absolute; another name is a hub id.
    refs = filter(None, (spec.model.target, spec.model.draft))
    is_local = any(Path(ref).is_absolute() for ref in refs)
    gpu = spec.hardware.tier or _GPU
    try:
        planned_device(gpu)
    except UsageError:  # a tier of the user's own
        gpu = _GPU
    values = {
        "spec": yaml_scalar(spec_path.replace("${{", "${{ '${{' }}")),
        "gpu": yaml_scalar(gpu),
        "lenient": _LENIENT if is_local else "",
    }
    text = Path(__file__).with_name("whet.yml.in").read_text(encoding="utf-8")
    return re.sub(r"\[\[ (\w+) \]\]", lambda match: values[match[1]], text)


def _path(path: Path, root: Path) -> str:
    """``path`` from the repository's root; one outside of it stays absolute."""
    whole = path.resolve()
    shown = os.path.relpath(whole, root) if whole.is_relative_to(root) else str(whole)
    return f"./{shown}" if shown.startswith("-") else shown  # not an option
