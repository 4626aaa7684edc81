"""What a comparison of schemes is asked to do, and what its folder was begun with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import locate, read_facts
from whet.core.errors import StorageError, UsageError
from whet.core.names import require_name
from whet.core.protocols import Observer
from whet.core.provenance import environment
from whet.core.records import ModelFacts, QuantizedCheckpoint, encode
from whet.core.spec import EngineSpec, QualitySpec, RecipeSpec
from whet.core.store import RunStore, write_json
from whet.data import write_inputs
from whet.flow.run.context import Inputs

ASKED: Final = "asked"
_BEFORE_ANYTHING: Final = {".lock", "inputs"}
"""What a start that was refused leaves behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareRequest:
    """What is compared, on what. A data file left out is the built-in one."""

    model: str
    recipes: Mapping[str, RecipeSpec]
    quality: QualitySpec
    calibration: Path | None = None
    tasks: bool = True
    device: str | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What decides the figures of a comparison; figures of two kinds never share a table."""

    model: str
    source_weights_sha256: str
    calibration_sha256: str
    heldout_sha256: str
    tasks_sha256: str
    limits: dict[str, int]
    recipes: dict[str, dict[str, Any]]
    titles: dict[str, str]
    heldout: str
    tasks: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareJob:
    """A prepared comparison."""

    request: CompareRequest
    store: RunStore
    observer: Observer
    source: ModelFacts
    inputs: Inputs

    @property
    def folder(self) -> Path:
        """The source's folder."""
        return Path(self.source.path)

    @property
    def made(self) -> dict[str, QuantizedCheckpoint]:
        """The checkpoints that were written, of the schemes asked for now."""
        found = {
            name: self.store.get("quantized", name, QuantizedCheckpoint)
            for name in self.request.recipes
            if self.store.done("quantized", name)
        }
        return {name: done for name, done in found.items() if done is not None}


@contextmanager
def open_comparison(out: Path) -> Iterator[RunStore]:
    """The folder of a comparison, new or begun before; ``StorageError`` for anything else."""
    found = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if not found <= _BEFORE_ANYTHING and not (out / ASKED).is_dir():
        raise StorageError(
            f"{out} exists and holds no comparison; remove it or choose another folder"
        )
    with RunStore.open(out, resume=True) as store:
        yield store


def prepare_comparison(request: CompareRequest, store: RunStore, observer: Observer) -> CompareJob:
    """The source read, data files at hand, and what was asked before found to be the same."""
    observer.stage("compare", f"{len(request.recipes)} schemes of {request.model}")
    for name in request.recipes:
        require_name(name, "the scheme")
    source = read_facts(locate(request.model))
    inputs = _inputs(request, store)
    job = CompareJob(request=request, store=store, observer=observer, source=source, inputs=inputs)
    asked = _refuse_other(job)
    store.put("models", "source", source)
    write_json(store.path("environment.json"), environment())
    store.put(ASKED, ASKED, asked)
    return job


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
    if None in given.values() and not (builtin / "workload.jsonl").exists():
        write_inputs(builtin)
    return Inputs(
        pool=builtin / "workload.jsonl",
        heldout=quality.heldout or builtin / "heldout.jsonl",
        tasks=quality.tasks or builtin / "tasks.jsonl",
        calibration=request.calibration or builtin / "calibration.jsonl",
    )


def _refuse_other(job: CompareJob) -> Asked:
    """Go on only with the weights, the text and the recipes that the folder was begun with.

    Returns what is asked now and what was asked before in one.
    """
    now, before = _asked(job), job.store.get(ASKED, ASKED, Asked)
    if before is not None:
        plain, old = encode(now), encode(before)
        changed = [
            said
            for key, said in _FIXED.items()
            if plain[key] != old[key] and (key != "tasks_sha256" or before.tasks)
        ]
        changed += [
            f"the recipe {name}"
            for name, recipe in now.recipes.items()
            if before.recipes.get(name, recipe) != recipe
        ]
        if changed:
            raise UsageError(
                f"{job.store.root} was begun with other values of {', '.join(changed)}; put them "
                "back to go on, or choose another folder"
            )
        now = replace(
            now,
            recipes={**before.recipes, **now.recipes},
            titles={**before.titles, **now.titles},
            tasks=before.tasks or now.tasks,
        )
    return now


_FIXED: Final = {
    "source_weights_sha256": "the model's weights",
    "calibration_sha256": "the calibration text",
    "heldout_sha256": "the held-out text",
    "tasks_sha256": "the tasks",
    "limits": "--max-documents, --max-tasks or --max-document-tokens",
}


def _asked(job: CompareJob) -> Asked:
    quality, recipes = job.request.quality, job.request.recipes
    plain = {name: recipe.model_dump(mode="json") for name, recipe in recipes.items()}
    for recipe in plain.values():
        recipe["calibration"].pop("source")  # where the text lies; what it says is hashed
    model = job.request.model
    return Asked(
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
        recipes=plain,
        titles={name: recipe.title for name, recipe in recipes.items()},
        heldout=job.inputs.heldout.name,
        tasks=job.request.tasks,
    )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
