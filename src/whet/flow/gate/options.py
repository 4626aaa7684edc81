"""Options of ``whet quality``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt, PositiveInt
from pydantic import ValidationError

from whet.core.errors import UsageError
from whet.core.spec import QualitySpec, problem_words

DEFAULT_BASELINE: Final = Path("quality-baseline")
"""Where a target without a baseline is saved, unless --save says."""


@Parameter(name="*", group=Group.create_ordered("The two sides"))
@dataclass(frozen=True, kw_only=True, slots=True)
class SideOptions:
    """What is compared, and what is saved."""

    baseline: str | None = None
    """The 16-bit side, a URL or a folder. It is measured first."""
    against: Path | None = None
    """Folder of a saved baseline: its text, tasks and tokenizer are used."""
    save: Path | None = None
    """Save the measured baseline to this folder. Default: quality-baseline, without --baseline."""
    model: str | None = None
    """Model name on TARGET. Default: the only one it serves."""
    baseline_model: str | None = None
    """Model name on the baseline server. Default: the only one it serves."""
    tokenizer: str | None = None
    """Tokenizer folder or hub id. Default: the one that the baseline server reports."""
    speculative: bool = False
    """TARGET serves the baseline's weights with speculation: check that it is lossless. Without
    --baseline or --against: save the plain answers that this check needs."""


@Parameter(name="*", group=Group.create_ordered("What is measured"))
@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions:
    """Text, tasks and tolerances."""

    heldout: Path | None = None
    """Held-out text (JSONL). Default: the built-in text."""
    tasks: Path | None = None
    """Questions with answers (JSONL). Default: the built-in tasks."""
    tolerance: Annotated[tuple[float, ...], Parameter(name="--tolerance")] = ()
    """Allowed perplexity increase as a share. Repeatable. Default: 0.01, which is 1%."""
    max_documents: int | None = None
    """Documents at most. Default: 200."""
    max_tasks: int | None = None
    """Questions at most. Default: 300."""
    max_tokens: int | None = None
    """Tokens of a document at most. Default: 1024."""
    concurrency: PositiveInt = 16
    """Requests in flight."""
    top_logprobs: int | None = None
    """Likeliest tokens per position, for KL and flips; 0 measures neither. Default: 5."""


@Parameter(name="*", group=Group.create_ordered("lm-evaluation-harness"))
@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessOptions:
    """Tasks that lm-eval scores on both sides."""

    lm_eval: str | None = None
    """Tasks of lm-eval, such as mmlu,hellaswag."""
    limit: PositiveInt | None = None
    """Documents of each task, from the start. Default: all."""
    num_fewshot: NonNegativeInt | None = None
    """Examples in each prompt. Default: the task's own."""
    include_path: Path | None = None
    """Folder of your own task files."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names that --lm-eval gives, without repeats."""
        names = (name.strip() for name in (self.lm_eval or "").split(","))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def words(self) -> list[str]:
        """The remaining options as lm_eval's own."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        del given["lm_eval"]
        pairs = ((f"--{name}", str(value)) for name, value in given.items() if value is not None)
        return [word for pair in pairs for word in pair]

    def refuse_misfits(self) -> None:
        """Raise ``UsageError`` for options without tasks, and for a folder that is missing."""
        if self.lm_eval is None and self.words:
            flag = self.words[0].replace("_", "-")
            raise UsageError(f"{flag} belongs to --lm-eval", fix="name its tasks, or leave it out")
        if self.lm_eval is not None and not self.tasks:
            raise UsageError("--lm-eval names no task", fix="name some, as in mmlu,hellaswag")
        if self.include_path is not None and not self.include_path.is_dir():
            raise UsageError(
                f"{self.include_path} is not a folder of task files", fix="correct the path"
            )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class QualityOptions:
    """All options of ``whet quality``; the target is an argument."""

    sides: SideOptions = SideOptions()
    measure: MeasureOptions = MeasureOptions()
    harness: HarnessOptions = HarnessOptions()

    @property
    def save(self) -> Path | None:
        """The folder for the measured baseline, None to save none."""
        alone = self.sides.baseline is None and self.sides.against is None
        return DEFAULT_BASELINE if alone and self.sides.save is None else self.sides.save

    @property
    def tolerances(self) -> tuple[float, ...]:
        """The allowed perplexity increases as shares."""
        return self.measure.tolerance or (0.01,)

    def refuse_misfits(self) -> None:
        """Raise ``UsageError`` for options that do not go together, or out of range."""
        sides, quality = self.sides, self.quality()
        self.harness.refuse_misfits()
        if sides.against is not None:
            self._refuse_beside_saved(quality)
        for tolerance in self.tolerances:
            if not 0 < tolerance < 1:
                raise UsageError(f"--tolerance {tolerance:g}: give a share, as 0.01 for 1 %")

    def quality(self) -> QualitySpec:
        """Return the spec with the given options. ``UsageError`` for an invalid value."""
        values = {name: getattr(self.measure, name) for name in _MEASURED}
        try:
            return QualitySpec(**{k: v for k, v in values.items() if v is not None})
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{_flag(first['loc'][0])}: {problem_words(first)}") from error

    def _refuse_beside_saved(self, quality: QualitySpec) -> None:
        """Refuse what the saved baseline fixes, and another baseline."""
        fixed = quality.model_fields_set - {"concurrency"}
        given = [_flag(name) for name in _MEASURED if name in fixed]
        given += ["--tokenizer"] * (self.sides.tokenizer is not None)
        if given:
            raise UsageError(
                f"{given[0]} does not go with --against: the saved baseline fixes what is measured",
                fix="leave it out, or save a baseline with it",
            )
        if self.sides.baseline is not None:
            raise UsageError(
                "--baseline measures a baseline and --against reads a saved one",
                fix="give one of them",
            )
        if self.sides.save is not None:
            raise UsageError(
                "--save stores a baseline that is measured now", fix="leave --against out"
            )


_MEASURED: Final = tuple(each.name for each in fields(MeasureOptions) if each.name != "tolerance")
"""Options that are keys of the spec's quality."""


def _flag(name: object) -> str:
    return f"--{name}".replace("_", "-")
