"""What the files of a spec say: its checkpoints, its request log, and the built-in texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError, UsageError
from whet.core.records.model import ModelFacts
from whet.core.spec import Spec
from whet.data import write_inputs
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.traffic.logged import TRAFFIC, TrafficLog, read_traffic

GENERATED: Final = "workload.jsonl"
"""The built-in file with the texts of generated requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """A spec, with the workload of its log if it has one, and what its files say.

    By the reference in the spec, ``weights`` are those that variants or the search bring,
    ``unreadable`` says why some cannot be read, and ``folders`` are of adapters and drafts.
    ``texts`` are built in.
    """

    spec: Spec
    target: ModelFacts
    draft: ModelFacts | None
    weights: Mapping[str, ModelFacts]
    unreadable: Mapping[str, str]
    folders: Mapping[str, Path]
    texts: Path
    log: TrafficLog | None

    @property
    def tokenizer(self) -> Path:
        """The folder whose tokenizer makes every prompt."""
        return Path(self.target.path)

    @property
    def answer_tokens(self) -> float:
        """The mean length of an answer: the log's, or the middle of the workload's range."""
        if self.log is not None:
            return mean(answer for _, answer in self.log.lengths)
        return (self.spec.workload.min_output_tokens + self.spec.workload.max_output_tokens) / 2


def find_facts(spec: Spec, root: Path, checkpoints: Checkpoints) -> Facts:
    """Find each file that the spec names, and read its headers; ``root`` is the run directory.

    Raises ``UsageError`` for a data file or log, and ``CheckpointError`` for a model, an adapter or
    a draft that is not there or cannot be read.
    """
    for key, path in own_files(spec).items():
        if path is not None and not path.is_file():
            raise UsageError(
                f"{key}: no file at {path}", fix="correct the path or leave the key out"
            )
    model, log = spec.model, None
    target = read_facts(checkpoints.find(model.target, model.revision))
    draft = read_facts(checkpoints.find(model.draft, model.draft_revision)) if model.draft else None
    if spec.traffic is not None:
        stored = root / "inputs" / TRAFFIC
        log = read_traffic(
            spec.traffic,
            Path(target.path),
            target.max_position,
            stored if stored.exists() else None,
            model.variables,
        )
        spec = spec.model_copy(update={"workload": log.workload()})
    weights: dict[str, ModelFacts] = {}
    unreadable: dict[str, str] = {}
    brought = (item.weights for name, item in spec.variants.items() if spec.brings_weights(name))
    named = () if spec.search is None else spec.search.checkpoints
    for ref in dict.fromkeys((*brought, *named)):
        try:
            weights[ref] = read_facts(checkpoints.find(ref))
        except CheckpointError as error:
            unreadable[ref] = str(error)
    return Facts(
        spec=spec,
        target=target,
        draft=draft,
        weights=weights,
        unreadable=unreadable,
        folders={ref: checkpoints.find(ref) for ref in _parts(spec, unreadable)},
        texts=_texts(root / "inputs", checkpoints.scratch / "texts"),
        log=log,
    )


def own_files(spec: Spec) -> dict[str, Path | None]:
    """Return the data files that a spec may name, by key; None where it leaves one out."""
    calibration = {name: recipe.calibration.source for name, recipe in spec.recipes.items()}
    return {
        "load.trace": spec.load.trace,
        "quality.heldout": spec.quality.heldout,
        "quality.tasks": spec.quality.tasks,
        **{f"recipes.{name}.calibration.source": path for name, path in calibration.items()},
    }


def _parts(spec: Spec, unreadable: Mapping[str, str]) -> Iterator[str]:
    """Yield the adapters and drafts of the variants whose weights can be read."""
    for item in spec.variants.values():
        if item.weights not in unreadable:
            yield from item.loras.values()
            draft = None if item.speculation is None else item.speculation.draft
            if draft is not None and draft not in spec.recipes:
                yield draft


def _texts(own: Path, scratch: Path) -> Path:
    """Return the run's folder of built-in texts; before it is made, write them to ``scratch``."""
    if (own / GENERATED).exists():
        return own
    if not scratch.exists():
        write_inputs(scratch)
    return scratch
