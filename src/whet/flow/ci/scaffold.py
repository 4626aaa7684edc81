"""``whet ci init``: a GitHub Actions workflow and a DVC pipeline for a spec."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from whet._version import __version__
from whet.core.errors import UsageError
from whet.core.quote import shell_words, yaml_scalar
from whet.core.spec import GROUPED, RecipeSpec, Spec, load_spec
from whet.core.store import write_atomic
from whet.flow.run.check.facts import own_files
from whet.predict.hardware import planned_device

_WORKFLOW: Final = "whet.yml.j2"
_GPU: Final = "H100 SXM"
_RUNS, _CHECKPOINTS, _BASELINE = "runs", "checkpoints", "baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stage:
    """One stage of the pipeline: a shell command, the paths that it reads and the one it writes."""

    cmd: str
    deps: tuple[str, ...]
    out: str
    recipe: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _LeftOut:
    """A recipe that ``whet quantize`` cannot make as the run does, and why."""

    name: str
    reason: str


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
            raise UsageError(f"{path} exists; move it away, or choose another --output-dir")
    for path, text in texts.items():
        write_atomic(path, text)
    return (
        *(f"Wrote {path}" for path in texts),
        "Next: set GPU and the runner's labels in the workflow, and copy a finished run of what is "
        f"deployed to {root / _BASELINE}",
    )


def _workflow(spec: Spec, spec_path: str) -> str:
    refs = (spec.model.target, spec.model.draft)
    return _render(
        _WORKFLOW,
        spec=spec_path,
        gpu=_known_gpu(spec.hardware.tier),
        version=__version__,
        local_model=any(_is_folder(ref) for ref in refs if ref is not None),
    )


def _known_gpu(tier: str | None) -> str:
    """The spec's tier where it names a GPU, else one to be replaced."""
    try:
        planned_device(tier or "")
    except UsageError:
        return _GPU
    return tier or _GPU


def _pipeline(spec: Spec, spec_file: Path, root: Path) -> str:
    spec_path, run_dir = _path(spec_file, root), f"{_RUNS}/{spec.name}"
    stages, left_out = list[_Stage](), list[_LeftOut]()
    for name in _used_recipes(spec):
        reason = _cannot_make(spec, spec.recipes[name])
        if reason is None:
            stages.append(_quantize(spec, name, root, taken={each.recipe for each in stages}))
        else:
            left_out.append(_LeftOut(name=name, reason=reason))
    run = _Stage(
        cmd=shell_words(["whet", "run", spec_path, "--output-dir", _RUNS]),
        deps=(spec_path, *dict.fromkeys(_path(path, root) for path in _inputs(spec))),
        out=run_dir,
    )
    compare = ["whet", "ci", run_dir, "--against", _BASELINE]
    files = ["--metrics", "metrics.json", "--markdown", "whet-ci.md"]
    ci = _Stage(
        cmd=f"{shell_words([*compare, *files])} || test $? -eq 9 -o $? -eq 6", deps=(), out=""
    )
    return _render("dvc.yaml.j2", checkpoints=stages, left_out=left_out, run=run, ci=ci)


def _used_recipes(spec: Spec) -> tuple[str, ...]:
    """The recipes that some variant serves or drafts with, in the spec's order."""
    used = {recipe for name in spec.variants for recipe in spec.recipes_of(name)}
    return tuple(name for name in spec.recipes if name in used)


def _cannot_make(spec: Spec, recipe: RecipeSpec) -> str | None:
    if recipe.calibration.source is None and spec.traffic is not None:
        return "it is calibrated on the run's own part of the log"
    if spec.model.revision is not None and not _is_folder(spec.model.target):
        return "whet quantize takes no revision of a hub checkpoint"
    return None


def _quantize(spec: Spec, name: str, root: Path, *, taken: Container[str]) -> _Stage:
    """A stage with a name that is not ``taken``: DVC allows fewer characters than a spec."""
    label = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    while label in taken:
        label += "-"
    recipe, target, out = spec.recipes[name], spec.model.target, f"{_CHECKPOINTS}/{name}"
    model = _path(Path(target), root) if _is_folder(target) else target
    source = recipe.calibration.source
    text = [] if source is None else [_path(source, root)]
    words = ["whet", "quantize", model, out, *recipe_words(recipe)]
    words += ["--calibration", *text] if text else []
    return _Stage(
        cmd=shell_words([*words, "--no-serve-check"]),
        deps=(*([model] if _is_folder(target) else []), *text),
        out=out,
        recipe=label,
    )


def recipe_words(recipe: RecipeSpec) -> list[str]:
    """The options of ``whet quantize`` for a recipe, its calibration file aside."""
    words = ["--scheme", recipe.scheme, "--method", recipe.method]
    if recipe.scheme in GROUPED:
        words += ["--group-size", str(recipe.group_size)]
    if recipe.writer != "whet":
        words += ["--writer", recipe.writer]
    if "awq" in recipe.method and not recipe.clip:
        words.append("--no-clip")
    if recipe.kv_cache is not None:
        words += ["--kv-cache", recipe.kv_cache]
    if recipe.mixed is not None:
        words += ["--mixed-keep", recipe.mixed.keep]
        for flag in ("bits_per_weight", "max_error"):
            if (value := getattr(recipe.mixed, flag)) is not None:
                words += [f"--{flag.replace('_', '-')}", f"{value:g}"]
    text = recipe.calibration
    words += ["--samples", str(text.samples), "--max-tokens", str(text.max_tokens)]
    return [*words, "--seed", str(text.seed)]


def _inputs(spec: Spec) -> Iterator[Path]:
    """Every file and folder that the run reads; hub checkpoints are pinned by the spec."""
    drafts = (v.speculation.draft for v in spec.variants.values() if v.speculation is not None)
    loras = (path for variant in spec.variants.values() for path in variant.loras.values())
    weights = (variant.weights for variant in spec.variants.values())
    for ref in (spec.model.target, spec.model.draft, *drafts, *loras, *weights):
        if ref is not None and ref not in spec.recipes and _is_folder(ref):
            yield Path(ref)
    log = None if spec.traffic is None else spec.traffic.log
    for path in (log, *own_files(spec).values()):
        if path is not None:
            yield path


def _is_folder(ref: str) -> bool:
    """Whether a checkpoint is a folder and not a hub id: the spec makes local paths absolute."""
    return Path(ref).is_absolute()


def _path(path: Path, root: Path) -> str:
    """``path`` from the repository's root; one outside of it stays absolute."""
    whole = path.resolve()
    shown = os.path.relpath(whole, root) if whole.is_relative_to(root) else str(whole)
    return f"./{shown}" if shown.startswith("-") else shown  # not an option


def _literal(text: str) -> str:
    """``text`` in a workflow, whose expressions GitHub replaces: as one that yields ``${{``."""
    return text.replace("${{", "${{ '${{' }}")


def _escaped(text: str) -> str:
    """``text`` in dvc.yaml, whose ``${ }`` DVC replaces unless a backslash stands before it."""
    return text.replace("${", "\\${")


def _render(template: str, **values: object) -> str:
    """Square brackets mark variables: both formats have ``{{ }}`` or ``${ }`` of their own."""
    own = _literal if template == _WORKFLOW else _escaped
    environment = Environment(
        loader=PackageLoader("whet.flow.ci"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
    )
    environment.filters["yaml"] = lambda text: yaml_scalar(own(text))
    return environment.get_template(template).render(values)
