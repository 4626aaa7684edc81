"""``whet quantize``: one checkpoint, without serving it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.console import ConsoleObserver
from whet.core.errors import UsageError
from whet.core.spec import CalibrationSpec, RecipeSpec
from whet.core.units import human_bytes, human_duration


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quantize")(quantize)


def quantize(
    model: Annotated[str, typer.Argument(help="The 16-bit checkpoint: a folder or a hub id.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    method: Annotated[str, typer.Option(help="awq or rtn.")] = "awq",
    group_size: Annotated[int, typer.Option(help="32, 64 or 128.")] = 128,
    calibration: Annotated[
        Path | None,
        typer.Option(help="JSONL (messages, prompt or text) or .txt; built-in by default."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Calibration samples.")] = 512,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each sample, at most.")] = 512,
    seed: Annotated[int, typer.Option(help="Which samples are drawn.")] = 0,
) -> None:
    """Write a 4-bit (W4A16) checkpoint in the compressed-tensors format that vLLM serves."""
    from whet.flow.sharpen import quantize_alone

    recipe = _recipe(
        {
            "method": method,
            "group_size": group_size,
            "calibration": CalibrationSpec.model_construct(
                source=calibration, samples=samples, max_tokens=max_tokens, seed=seed
            ).model_dump(),
        }
    )
    with ConsoleObserver() as observer:
        observer.stage("quantize", f"{method} W4A16 g{group_size}")
        done = quantize_alone(model, out, recipe, observer)
        observer.note(
            f"{done.path}: {human_bytes(done.weight_bytes)}, {done.bits_per_weight:.2f} bits "
            f"a weight, in {human_duration(done.seconds)}"
        )


def _recipe(data: dict[str, object]) -> RecipeSpec:
    from pydantic import ValidationError

    try:
        return RecipeSpec.model_validate(data)
    except ValidationError as error:
        item = error.errors()[0]
        flag = "--" + str(item["loc"][-1]).replace("_", "-")
        raise UsageError(f"{flag}: {item['msg']} (got {item['input']!r})") from error
