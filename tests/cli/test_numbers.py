"""No number of any option is endless, negative by mistake or too large to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from cyclopts import App

from tests.cli.stage import Whet
from whet.cli.main import app
from whet.cli.options import PARAMETER

WORDS = {
    "bench": ("http://127.0.0.1:9",),
    "break-even": ("whet.yaml",),
    "ci": ("run", "--against", "base"),
    "demo": (),
    "deploy": ("run",),
    "plan": ("model", "--workload", "prompt=1,output=1"),
    "prompts": ("log", "--model", "model"),
    "prompts lint": ("template",),
    "quality": ("target",),
    "quantize": ("model", "out"),
    "watch": ("bundle", "--url", "http://h"),
}
SIGNED = {"--top-k", "--frequency-penalty", "--presence-penalty"}
ENDLESS = {"--request-rate"}
ABOVE_ZERO = {
    "--burstiness", "--concurrency", "--max-model-len", "--num-prompts", "--rate",
    "--timeout-s", "--period", "--max-regression", "--workers", "--periods",
}  # fmt: skip


def kinds(hint: Any) -> set[Any]:
    return {hint}.union(*map(kinds, get_args(hint)))


def commands(own: App, *path: str) -> Iterator[tuple[tuple[str, ...], App]]:
    yield path, own
    for name, command in own.resolved_commands().items():
        if not name.startswith("-"):
            yield from commands(command, *path, name)


def numeric() -> list[tuple[tuple[str, ...], tuple[str, ...], bool]]:
    """Command, names of the option, and whether it takes a fraction."""
    return [
        (path, argument.names, float in kinds(argument.hint))
        for path, command in commands(app)
        if command.default_command is not None
        for argument in command.assemble_argument_collection(default_parameter=PARAMETER)
        if kinds(argument.hint) & {int, float} and argument.names[0].startswith("--")
    ]


def test_every_command_with_numbers_is_tried() -> None:
    options = numeric()
    assert len(options) >= 50
    assert {" ".join(path) for path, *_ in options} <= WORDS.keys()
    assert {name for _, names, _ in options for name in names} >= ABOVE_ZERO


@pytest.mark.parametrize(
    ("path", "names", "fraction"), numeric(), ids=lambda each: str(each).strip("-(),'")
)
def test_an_impossible_number_is_one_sentence(
    whet: Whet, path: tuple[str, ...], names: tuple[str, ...], *, fraction: bool
) -> None:
    bad = ["nan", "1e300"] if fraction else ["1" + "0" * 30]
    bad += ["inf"] if fraction and not ENDLESS & {*names} else []
    bad += [] if SIGNED & {*names} else ["-1"]
    bad += ["0"] if ABOVE_ZERO & {*names} else []
    for value in bad:
        said = whet(*path, *WORDS[" ".join(path)], f"{names[0]}={value}").sentence(2)
        assert any(name in said for name in names)
