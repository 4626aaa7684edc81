"""``whet ci init``: a GitHub Actions workflow and a DVC pipeline for a spec."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeGuard

from whet.core.errors import UsageError
from whet.core.quote import shell_words, yaml_scalar, yaml_text
from whet.core.spec import Spec, load_spec
from whet.core.store import write_atomic
from whet.flow.run.check.facts import own_files
from whet.predict.hardware import planned_device

_GPU: Final = "H100 SXM"
_RUNS, _BASELINE = "runs", "baseline"
_HEAD: Final = """\
# Written by whet ci init. dvc repro does what changed, dvc metrics diff shows what came of it.
# Exit codes 9 and 6 of whet ci (fail, unknown) are figures here: the verdict is one of the metrics.
"""
_LENIENT: Final = " || test $? -eq 3  # the checkpoint's folder may be missing here"


def write_pipelines(spec_file: Path, root: Path) -> tuple[str, ...]:
    """Write ``.github/workflows/whet.yml`` and ``dvc.yaml`` below ``root``; return what to say.

    Raises ``UsageError`` for a spec that is wrong, and where one of the files exists.
    """
    spec, folder = load_spec(spec_file), root.resolve()
    texts = {
        root / ".github" / "workflows" / "whet.yml": _workflow(spec, _path(spec_file, folder)),
        root / "dvc.yaml": _pipeline(spec, spec_file, folder),
    }
    for path in texts:
        if path.exists():
            raise UsageError(f"{path} exists", fix="move it away, or choose another --output-dir")
    for path, text in texts.items():
        write_atomic(path, text)
    return (
        *(f"Wrote {path}" for path in texts),
        "Next: set GPU and the runner's labels in the workflow, put a clone of whet at "
        f"{root / 'whet'}, and copy a finished run of what is deployed to {root / _BASELINE}",
    )


def _workflow(spec: Spec, spec_path: str) -> str:
    """The template with its ``[[ ]]`` filled in; ``${{`` of foreign text is not evaluated."""
    is_local = _is_folder(spec.model.target) or _is_folder(spec.model.draft)
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


def _pipeline(spec: Spec, spec_file: Path, root: Path) -> str:
    spec_path, run_dir = _path(spec_file, root), f"{_RUNS}/{spec.name}"
    ci = shell_words(["whet", "ci", run_dir, "--against", _BASELINE])
    stages = {
        "run": {
            "cmd": shell_words(["whet", "run", spec_path, "--output-dir", _RUNS]),
            "deps": [spec_path, *dict.fromkeys(_path(path, root) for path in _inputs(spec))],
            "outs": [run_dir],
        },
        "ci": {
            "cmd": f"{ci} --metrics metrics.json --markdown whet-ci.md"
            " || test $? -eq 9 -o $? -eq 6",
            "deps": [_BASELINE, run_dir],
            "outs": [{"whet-ci.md": {"cache": False}}],
            "metrics": [{"metrics.json": {"cache": False}}],
        },
    }
    # DVC replaces ${ } unless a backslash stands before it.
    return _HEAD + yaml_text(json.loads(json.dumps({"stages": stages}).replace("${", r"\\${")))


def _inputs(spec: Spec) -> Iterator[Path]:
    """Every file and folder that the run reads; hub checkpoints are pinned by the spec."""
    refs, variants = [spec.model.target, spec.model.draft], spec.variants.values()
    refs += [v.speculation.draft for v in variants if v.speculation is not None]
    refs += [ref for v in variants for ref in (*v.loras.values(), v.weights)]
    yield from (Path(ref) for ref in refs if _is_folder(ref))
    log = None if spec.traffic is None else spec.traffic.log
    yield from (path for path in (log, *own_files(spec).values()) if path)


def _is_folder(ref: str | None) -> TypeGuard[str]:
    """Whether a checkpoint is a folder and not a hub id: the spec makes local paths absolute."""
    return ref is not None and Path(ref).is_absolute()


def _path(path: Path, root: Path) -> str:
    """``path`` from the repository's root; one outside of it stays absolute."""
    whole = path.resolve()
    shown = os.path.relpath(whole, root) if whole.is_relative_to(root) else str(whole)
    return f"./{shown}" if shown.startswith("-") else shown  # not an option
