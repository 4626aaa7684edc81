"""The request of a comparison of schemes, and the settings that its folder was started with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from whet.checkpoint import locate, read_facts
from whet.core.errors import CheckpointError, MeasurementError, StorageError, UsageError
from whet.core.names import require_name
from whet.core.protocols import Observer
from whet.core.provenance import environment
from whet.core.records import ModelFacts, QuantizedCheckpoint
from whet.core.spec import EngineSpec, QualitySpec, RecipeSpec
from whet.core.store import RunStore, write_json
from whet.data import write_inputs
from whet.flow.run.context import Inputs

SETTINGS: Final = "asked"
"""The name under which the settings are stored."""
_EMPTY: Final = {".lock", "inputs"}
"""All that a refused start leaves behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareRequest:
    """The model, the recipes and the data; a missing file is the built-in one.

    ``loads`` are the requests in flight at which speed is measured, none for no speed.
    ``server_distances`` measures distances on the server also where memory would do.
    """

    model: str
    recipes: Mapping[str, RecipeSpec]
    quality: QualitySpec
    calibration: Path | None = None
    tasks: bool = True
    server_distances: bool = False
    loads: tuple[int, ...] = ()
    device: str | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSettings:
    """Everything that decides the figures: rows with other settings never share a table."""

    model: str
    source_weights_sha256: str
    calibration_sha256: str
    heldout_sha256: str
    tasks_sha256: str
    limits: dict[str, int]
    recipes: dict[str, RecipeSpec]
    titles: dict[str, str]
    heldout: str
    tasks: bool
    loads: tuple[int, ...] = ()
    server_distances: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareJob:
    """A prepared comparison; ``server_distances`` says how distances are measured."""

    request: CompareRequest
    store: RunStore
    observer: Observer
    source: ModelFacts
    inputs: Inputs
    server_distances: bool = False

    @property
    def folder(self) -> Path:
        """The source's folder."""
        return Path(self.source.path)

    @property
    def made(self) -> dict[str, QuantizedCheckpoint]:
        """The checkpoints of the requested schemes that are written."""
        checkpoints = {
            name: self.store.get("quantized", name, QuantizedCheckpoint)
            for name in self.request.recipes
            if self.store.done("quantized", name)
        }
        return {name: each for name, each in checkpoints.items() if each is not None}


@contextmanager
def open_comparison(out: Path) -> Iterator[RunStore]:
    """The folder of a comparison, new or resumed; ``StorageError`` for anything else."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if not names <= _EMPTY and not (out / SETTINGS).is_dir():
        raise StorageError(
            f"{out} exists and is not a comparison; remove it or choose another folder"
        )
    with RunStore.open(out, resume=True) as store:
        yield store


def prepare_comparison(request: CompareRequest, store: RunStore, observer: Observer) -> CompareJob:
    """Read the source, prepare the data files, and check the settings of a resumed folder."""
    observer.stage("compare", f"{len(request.recipes)} schemes of {request.model}")
    for name in request.recipes:
        require_name(name, "the scheme")
    source = read_facts(locate(request.model))
    inputs = _inputs(request, store)
    job = CompareJob(request=request, store=store, observer=observer, source=source, inputs=inputs)
    settings = _merged_settings(job)
    store.put("models", "source", source)
    write_json(store.path("environment.json"), environment())
    store.put(SETTINGS, SETTINGS, settings)
    return replace(job, server_distances=settings.server_distances)


def _inputs(request: CompareRequest, store: RunStore) -> Inputs:
    builtin = store.path("inputs")
    quality = request.quality
    given = {
        "--calibration": request.calibration,
        "--heldout": quality.heldout,
        "--tasks-file": quality.tasks,
    }
    for flag, path in given.items():
        if path is not None and not path.is_file():
            raise UsageError(f"{flag}: no file at {path}; correct the path or leave it out")
    needs_builtin = None in given.values() or request.loads
    if needs_builtin and not (builtin / "workload.jsonl").exists():
        write_inputs(builtin)
    return Inputs(
        traffic=None,
        pool=builtin / "workload.jsonl",
        heldout=quality.heldout or builtin / "heldout.jsonl",
        tasks=quality.tasks or builtin / "tasks.jsonl",
        calibration=request.calibration or builtin / "calibration.jsonl",
    )


_FIXED: Final = {
    "source_weights_sha256": "the model's weights",
    "calibration_sha256": "the calibration text",
    "heldout_sha256": "the held-out text",
    "tasks_sha256": "the tasks",
    "limits": "--max-documents, --max-tasks or --max-document-tokens",
}


def _merged_settings(job: CompareJob) -> ComparisonSettings:
    """The settings, with the schemes of earlier calls; ``UsageError`` where they contradict."""
    now, before = _settings(job), job.store.get(SETTINGS, SETTINGS, ComparisonSettings)
    if before is None or not any(job.store.done("distances", name) for name in before.recipes):
        now = replace(now, server_distances=_needs_server(job))
    elif job.request.server_distances and not before.server_distances:
        raise UsageError(
            f"{job.store.root} has distances measured in float32 in one process; leave "
            "--server-distances out to resume, or choose another folder"
        )
    else:
        now = replace(now, server_distances=before.server_distances)
    if before is None:
        return now
    changed = [
        text
        for key, text in _FIXED.items()
        if getattr(now, key) != getattr(before, key) and (key != "tasks_sha256" or before.tasks)
    ]
    if now.tasks and before.tasks and now.loads != before.loads:
        changed.append("--loads or --no-speed")
    changed += [
        f"the recipe {name}"
        for name, recipe in now.recipes.items()
        if before.recipes.get(name, recipe) != recipe
    ]
    if changed:
        raise UsageError(
            f"{job.store.root} was started with other values of {', '.join(changed)}; restore them "
            "to resume, or choose another folder"
        )
    return replace(
        now,
        recipes={**before.recipes, **now.recipes},
        titles={**before.titles, **now.titles},
        tasks=before.tasks or now.tasks,
        loads=before.loads if before.tasks else now.loads,
    )


def _needs_server(job: CompareJob) -> bool:
    """Whether distances are measured on the server: on request, or if nothing else is possible."""
    if job.request.server_distances or not job.request.tasks:
        return job.request.server_distances
    from whet.quality.loading import pick_device

    try:
        pick_device(job.request.device, job.folder)
    except (CheckpointError, MeasurementError) as error:
        job.observer.note(f"distances are measured on the server: {error}")
        return True
    return False


def _settings(job: CompareJob) -> ComparisonSettings:
    quality, recipes = job.request.quality, job.request.recipes
    model = job.request.model
    return ComparisonSettings(
        model=job.folder.name if Path(model).is_dir() else model,
        source_weights_sha256=job.source.weights_sha256,
        calibration_sha256=_sha256(job.inputs.calibration),
        heldout_sha256=_sha256(job.inputs.heldout),
        tasks_sha256=_sha256(job.inputs.tasks),
        limits={
            "documents": quality.max_documents,
            "tasks": quality.max_tasks,
            "tokens": quality.max_tokens,
        },
        recipes={name: _without_path(recipe) for name, recipe in recipes.items()},
        titles={name: recipe.title for name, recipe in recipes.items()},
        heldout=job.inputs.heldout.name,
        tasks=job.request.tasks,
        loads=job.request.loads,
    )


def _without_path(recipe: RecipeSpec) -> RecipeSpec:
    """The recipe without the path of its calibration text, whose content is hashed."""
    text = recipe.calibration.model_copy(update={"source": None})
    return recipe.model_copy(update={"calibration": text})


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from error
