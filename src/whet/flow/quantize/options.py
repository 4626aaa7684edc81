"""Options of ``whet quantize``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter
from cyclopts.types import PositiveInt
from pydantic import ValidationError

from whet.core.errors import UsageError
from whet.core.spec import GROUPED, CalibrationSpec, QualitySpec, RecipeSpec

_MIXED: Final = {
    "mixed_keep": "keep",
    "bits_per_weight": "bits_per_weight",
    "max_error": "max_error",
}
_LIKELIEST: Final = 20
"""Tokens a position for distances on the server: as many as vLLM names by default."""
_LIMITS: Final = {"max_documents": 100, "max_tasks": 120, "max_document_tokens": 512}


@Parameter(name="*", group=Group.create_ordered("Recipe"))
@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeOptions:
    """The scheme and how it is computed."""

    scheme: str | None = None
    """W4A16, W4A16_ASYM, W8A16, W8A8, FP8_DYNAMIC, FP8, FP8_BLOCK, W4A8_FP8, NVFP4, NVFP4A16, MXFP4
    or MXFP4A16; Q4_K_M, Q5_K_M or Q8_0 (GGUF). Default: W4A16."""
    method: str | None = None
    """awq, gptq, awq+gptq or rtn; smoothquant for W8A8; k-quant for GGUF. Default: the scheme's
    usual one."""
    group_size: int | None = None
    """Columns that share a scale: 32, 64 or 128. Default: 128."""
    no_clip: bool = False
    """Leave out AWQ's search for narrower ranges."""
    kv_cache: str | None = None
    """fp8: store scales of keys and values too."""
    mixed_keep: str | None = None
    """Form of units with the largest error: 16bit, W8A16, W8A8 or FP8_DYNAMIC. Default: 16bit."""
    bits_per_weight: float | None = None
    """Mixed precision: average bits per weight at most."""
    max_error: float | None = None
    """Mixed precision: relative output error of a unit at most."""
    writer: str | None = None
    """whet, or llm-compressor in an environment of its own. Default: whet; llm-compressor for NVFP4
    and MXFP4, llama.cpp for Q4_K_M, Q5_K_M and Q8_0."""


@Parameter(name="*", group=Group.create_ordered("Calibration"))
@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationOptions:
    """The text that activations are measured on."""

    calibration: Path | None = None
    """JSONL (a request log, messages, prompt or text) or .txt. Default: the built-in text."""
    samples: int = 512
    """Number of samples."""
    max_tokens: int = 512
    """Tokens of each sample at most."""
    seed: int = 0
    """Seed that draws the samples."""

    def spec(self) -> CalibrationSpec:
        """The same for a recipe. ``UsageError`` for a value out of range."""
        try:
            return CalibrationSpec(
                source=self.calibration,
                samples=self.samples,
                max_tokens=self.max_tokens,
                seed=self.seed,
            )
        except ValidationError as error:
            raise _usage_error(error) from error


@Parameter(name="*", group=Group.create_ordered("Afterwards"))
@dataclass(frozen=True, kw_only=True, slots=True)
class PublishOptions:
    """What happens to the written checkpoint."""

    serve_check: Annotated[bool, Parameter(negative="--no-serve-check")] = True
    """Serve the checkpoint, ask for one completion and name the kernel that ran."""
    push_to_hub: str | None = None
    """Upload to this repository of the hub, owner/name; private without --public."""
    public: bool = False
    """Create or use a public repository."""


@Parameter(name="*", group=Group.create_ordered("Comparison"))
@dataclass(frozen=True, kw_only=True, slots=True)
class CompareOptions:
    """One table of several schemes."""

    compare: bool = False
    """Make, measure and serve every scheme, each in a folder below OUT. Continues when repeated."""
    schemes: str | None = None
    """Schemes to compare, such as w4a16-awq,w8a8. Default: all; NVFP4 and MXFP4 only where
    llm-compressor has an environment."""
    no_tasks: bool = False
    """Start no server: no task scores, no kernels, no speed."""
    server_distances: bool = False
    """Measure KL, flips and perplexity on the server. Default: where two float32 copies of the
    model do not fit memory, or transformers cannot load it."""
    loads: Annotated[
        tuple[PositiveInt, ...], Parameter(consume_multiple=True, show_default=False)
    ] = (1, 8)
    """Requests in flight at which tokens/s and serving memory are measured. Default: 1 8."""
    no_speed: bool = False
    """Measure no speed and no serving memory. The engine starts sooner, in eager mode."""
    heldout: Path | None = None
    """Held-out text (JSONL). Default: the built-in text."""
    tasks_file: Path | None = None
    """Tasks (JSONL). Default: the built-in tasks."""
    max_documents: int | None = None
    """Held-out documents at most. Default: 100."""
    max_tasks: int | None = None
    """Tasks at most. Default: 120."""
    max_document_tokens: int | None = None
    """Tokens of a document at most. Default: 512."""

    def speed_loads(self) -> tuple[int, ...]:
        """The loads to time, ascending; none with --no-speed or --no-tasks."""
        return () if self.no_speed or self.no_tasks else tuple(sorted(set(self.loads)))

    def quality(self) -> QualitySpec:
        """What each scheme is measured on. ``UsageError`` for a value out of range."""
        limits = {
            name.replace("document_tokens", "tokens"): usual
            if (value := getattr(self, name)) is None
            else value
            for name, usual in _LIMITS.items()
        }
        try:
            return QualitySpec(
                heldout=self.heldout,
                tasks=self.tasks_file,
                top_logprobs=_LIKELIEST,
                **limits,
            )
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]).replace("max_tokens", "max_document_tokens")
            raise UsageError(f"{_flag(name)}: {first['msg']} (got {first['input']!r})") from error


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeOptions:
    """All options of ``whet quantize``; model and folder are arguments."""

    device: Annotated[str | None, Parameter(group="Parameters")] = None
    """cpu, cuda or cuda:1. Default: the first GPU if there is one."""
    recipe: RecipeOptions = RecipeOptions()
    text: CalibrationOptions = CalibrationOptions()
    after: PublishOptions = PublishOptions()
    comparison: CompareOptions = CompareOptions()

    def refuse_misfits(self) -> None:
        """``UsageError`` for options that have no meaning together."""
        if self.comparison.compare:
            for flag in (*_given(self.recipe), *_given(self.after)):
                raise UsageError(f"{flag} has no meaning with --compare, which makes every scheme")
            self._refuse_loads()
            if self.comparison.server_distances and self.comparison.no_tasks:
                raise UsageError(
                    "--server-distances has no meaning with --no-tasks, which starts no server; "
                    "leave out one"
                )
            return
        for flag in _given(self.comparison):
            raise UsageError(f"{flag} belongs to --compare; add that, or leave this out")
        if self.after.public and self.after.push_to_hub is None:
            raise UsageError("--public says how to upload; add --push-to-hub REPO")

    def _refuse_loads(self) -> None:
        comparison = self.comparison
        if "--loads" not in _given(comparison):
            return
        for name in ("no_tasks", "no_speed"):
            if getattr(comparison, name):
                raise UsageError(f"--loads has no meaning with {_flag(name)}; leave out one")

    def recipe_spec(self) -> RecipeSpec:
        """The recipe. ``UsageError`` for a value that is wrong or means nothing beside others."""
        options = self.recipe
        data: dict[str, Any] = {
            name: value
            for name in ("method", "scheme", "group_size", "kv_cache", "writer")
            if (value := getattr(options, name)) is not None
        }
        mixed = {
            key: value
            for name, key in _MIXED.items()
            if (value := getattr(options, name)) is not None
        }
        if mixed:
            data["mixed"] = mixed
        if options.no_clip:
            data["clip"] = False
        calibration = self.text.spec()
        try:
            recipe = RecipeSpec.model_validate({**data, "calibration": calibration.model_dump()})
        except ValidationError as error:
            raise _usage_error(error) from error
        if options.group_size is not None and recipe.scheme not in GROUPED:
            raise UsageError(
                f"--group-size has no meaning for {recipe.scheme}, whose groups are given; leave "
                f"it out, or choose --scheme {', '.join(GROUPED)}"
            )
        if options.no_clip and "awq" not in recipe.method:
            raise UsageError(f"--no-clip has no meaning for {recipe.method}, which does not clip")
        return recipe


def _given(group: object) -> Iterator[str]:
    for each in fields(group):  # type: ignore[arg-type]
        if each.name != "compare" and getattr(group, each.name) != each.default:
            yield _flag(each.name)


def _flag(name: str) -> str:
    return "--no-serve-check" if name == "serve_check" else f"--{name.replace('_', '-')}"


def _usage_error(error: ValidationError) -> UsageError:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    name = str(first["loc"][-1]) if first["loc"] else ""
    name = "mixed_keep" if name == "keep" else name
    known = {each.name for each in (*fields(RecipeOptions), *fields(CalibrationOptions))}
    if name in known:
        return UsageError(f"{_flag(name)}: {message} (got {first['input']!r})")
    for field in ("bits_per_weight", "max_error"):
        message = message.replace(field, _flag(field))
    return UsageError(message)
