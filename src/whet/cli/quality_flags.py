"""The flags of ``whet quality``, and the request that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ValidationError

from whet.core.errors import UsageError
from whet.core.spec import QualitySpec

if TYPE_CHECKING:
    from whet.flow.gate.request import GateRequest, HarnessAsked

_SIDES: Final = "The two sides"
_ASKED: Final = "What is asked"
_HARNESS: Final = "lm-evaluation-harness"
KEPT_HERE: Final = Path("quality-baseline")
"""Where a target without a baseline is kept, unless --save says."""

Target = Annotated[
    str,
    typer.Argument(
        help="A running server, http://host:port, or a checkpoint folder.", metavar="TARGET"
    ),
]
Baseline = Annotated[
    str | None,
    typer.Option(
        help="The 16-bit side, a URL or a folder, measured first.", rich_help_panel=_SIDES
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        help="A baseline that --save kept: its text, tasks and tokenizer are used.",
        metavar="FOLDER",
        rich_help_panel=_SIDES,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        help="Keep the baseline that is measured, for --against.",
        show_default=f"{KEPT_HERE}, for a TARGET without a baseline",
        metavar="FOLDER",
        rich_help_panel=_SIDES,
    ),
]
Golden = Annotated[
    Path | None,
    typer.Option(
        help="Ask TARGET these golden probes again and nothing else: a golden file, or a kept "
        "baseline's folder.",
        metavar="FILE",
        rich_help_panel=_SIDES,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="TARGET's name there; the only one if left out.", rich_help_panel=_SIDES),
]
BaselineModel = Annotated[
    str | None, typer.Option(help="The same of --baseline.", rich_help_panel=_SIDES)
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="The baseline's, folder or hub id; where its server's model lies by default.",
        rich_help_panel=_SIDES,
    ),
]
Speculative = Annotated[
    bool,
    typer.Option(
        "--speculative",
        help="TARGET serves the baseline's weights and speculates: check that it loses nothing.",
        rich_help_panel=_SIDES,
    ),
]
Heldout = Annotated[
    Path | None,
    typer.Option(help="Held-out text; built-in by default.", rich_help_panel=_ASKED),
]
TasksFile = Annotated[
    Path | None,
    typer.Option(help="Questions with answers; built-in by default.", rich_help_panel=_ASKED),
]
Tolerances = Annotated[
    list[float] | None,
    typer.Option(
        "--tolerance",
        help="Perplexity that may be lost, as a share; can be given again.",
        show_default="0.01",
        rich_help_panel=_ASKED,
    ),
]
_DEFAULTS: Final = QualitySpec()


def _count(what: str, usual: object) -> Any:
    return typer.Option(help=what, show_default=str(usual), rich_help_panel=_ASKED)


MaxDocuments = Annotated[
    int | None, _count("Documents, or windows, at most.", _DEFAULTS.max_documents)
]
MaxTasks = Annotated[int | None, _count("Questions at most.", _DEFAULTS.max_tasks)]
MaxTokens = Annotated[int | None, _count("Of a document, or of a window.", _DEFAULTS.max_tokens)]
Concurrency = Annotated[
    int, typer.Option(help="Requests in flight.", min=1, rich_help_panel=_ASKED)
]
TopLogprobs = Annotated[
    int | None,
    _count("Likeliest tokens a position, for KL and flips; 0: none.", _DEFAULTS.top_logprobs),
]
Protocol = Annotated[
    str | None,
    _count("documents, or windows: WikiText-2 as papers have it.", _DEFAULTS.protocol),
]
LmEval = Annotated[
    str | None,
    typer.Option(
        help="Its tasks too, as in mmlu,hellaswag.", metavar="TASKS", rich_help_panel=_HARNESS
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Documents of each, from the start.", rich_help_panel=_HARNESS),
]
NumFewshot = Annotated[
    int | None, typer.Option(min=0, help="Examples in each prompt.", rich_help_panel=_HARNESS)
]
IncludePath = Annotated[
    Path | None, typer.Option(help="Folder of your own task files.", rich_help_panel=_HARNESS)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class SideFlags:
    """Who is asked, and what is kept."""

    target: str
    baseline: str | None
    against: Path | None
    save: Path | None
    model: str | None
    baseline_model: str | None
    tokenizer: str | None
    speculative: bool


_ASKED_FLAGS: Final[Mapping[str, str]] = {
    "heldout": "--heldout",
    "tasks": "--tasks-file",
    "max_documents": "--max-documents",
    "max_tasks": "--max-tasks",
    "max_tokens": "--max-tokens",
    "top_logprobs": "--top-logprobs",
    "protocol": "--protocol",
}


def read_request(
    sides: SideFlags,
    asked: Mapping[str, Any],
    tolerances: list[float] | None,
    harness: HarnessAsked | None,
) -> GateRequest:
    """The request; ``asked`` are the fields of ``QualitySpec``, None where no flag was given."""
    from whet.flow.gate.request import GateRequest

    given = {key: value for key, value in asked.items() if value is not None}
    if sides.against is not None:
        fixed = [flag for key, flag in _ASKED_FLAGS.items() if key in given]
        fixed += ["--tokenizer"] if sides.tokenizer is not None else []
        if fixed:
            raise UsageError(
                f"{fixed[0]} does not go with --against: the kept baseline says what is asked; "
                "leave it out, or keep a baseline with it"
            )
    alone = sides.baseline is None and sides.against is None
    return GateRequest(
        target=sides.target,
        quality=_quality(given),
        tolerances=tuple(tolerances or (0.01,)),
        baseline=sides.baseline,
        against=sides.against,
        save=KEPT_HERE if alone and sides.save is None else sides.save,
        model=sides.model,
        baseline_model=sides.baseline_model,
        tokenizer=sides.tokenizer,
        speculative=sides.speculative,
        harness=harness,
    )


def read_harness_flags(
    tasks: str | None, limit: int | None, num_fewshot: int | None, include_path: Path | None
) -> HarnessAsked | None:
    """What lm-eval is asked; ``UsageError`` for its options without tasks."""
    from whet.flow.gate.request import HarnessAsked

    options = {"--limit": limit, "--num-fewshot": num_fewshot, "--include-path": include_path}
    if tasks is None:
        given = [flag for flag, value in options.items() if value is not None]
        if given:
            raise UsageError(f"{given[0]} belongs to --lm-eval; name its tasks, or leave it out")
        return None
    names = tuple(name.strip() for name in tasks.split(",") if name.strip())
    return HarnessAsked(
        tasks=names, limit=limit, num_fewshot=num_fewshot, include_path=include_path
    )


def _quality(given: Mapping[str, Any]) -> QualitySpec:
    try:
        return QualitySpec(**given)
    except ValidationError as error:
        first = error.errors()[0]
        flag = _ASKED_FLAGS.get(str(first["loc"][0]), "--concurrency")
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{flag}: {message} (got {first['input']!r})") from error
