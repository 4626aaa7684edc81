"""An engine at par is a folder and a line of the registry: nothing else names it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import whet
from whet.core.errors import UsageError
from whet.engines import ENGINES, get_engine

SOURCE = Path(whet.__file__).parent


def texts(path: Path) -> Iterator[str]:
    """The strings and imported names of a module, its docstrings and comments aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_nothing_outside_of_its_folder_names_an_engine() -> None:
    engine = "sglang"
    own = SOURCE / "engines" / engine
    named = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if not path.is_relative_to(own)
        for text in texts(path)
        if text == engine or f"engines.{engine}" in text
    ]
    assert sorted(set(named)) == ["engines/__init__.py"]


def test_without_its_line_an_engine_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ENGINES, "sglang")
    with pytest.raises(UsageError, match=r"unknown engine 'sglang' .*known: vllm, openai"):
        get_engine("sglang")
