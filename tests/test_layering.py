"""Who may import whom, and how long a file may be.

A folder of `src/whet` imports itself, `whet`'s own version, and what the table grants it; so do the
folders of `flow/run`. No module imports itself over others, lazily or for its types either.
"""

import ast
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "whet"
MAX_LINES = 400

ALLOWED: dict[str, set[str]] = {
    "_version": set(),
    "core": set(),
    "data": {"core"},
    "client": {"core"},
    "metrics": {"core"},
    "requests": {"core"},
    "checkpoint": {"core", "requests"},
    "engines": {"core", "client"},
    "levers": {"core", "checkpoint", "engines"},
    "quant": {"core", "checkpoint", "requests"},
    "load": {"core", "checkpoint", "client", "requests"},
    "quality": {"core", "checkpoint", "client", "metrics", "requests"},
    "decision": {"core", "metrics"},
    "deploy": {"core", "engines", "metrics"},
    "predict": {
        *("core", "data", "checkpoint", "engines", "levers", "load", "metrics", "requests"),
    },
    "watch": {"core", "client", "metrics", "quality", "engines", "levers"},
    "demo": {"core", "data", "checkpoint"},
    "report": {"core", "metrics"},
    "ci": {"core", "metrics", "decision", "quality", "report"},
    "prompts": {"core", "data", "checkpoint", "load", "report", "requests"},
}
ALLOWED["flow"] = set(ALLOWED)
ALLOWED["cli"] = {"core", "flow", "prompts", "ci", "report"}
ALLOWED["api"] = {"cli", "core", "levers", "report"}
ALLOWED["__main__"] = {"cli"}
RUN: dict[str, set[str]] = {
    "plan": set(),
    "situation": set(),
    "resume": set(),
    "conclude": set(),
    "traffic": {"plan"},
    "check": {"plan", "situation", "resume", "traffic"},
    "search": {"plan", "situation", "traffic", "conclude"},
    "measure": {"plan", "resume", "traffic", "conclude"},
    "workers": {"plan", "traffic", "measure"},
    "export": set(),
    "options": {"measure", "workers"},
    "pipeline": {
        *("plan", "situation", "check", "search", "measure", "conclude", "options"),
    },
}
"""What each part of `flow/run` may import of the others."""
MEASURING = ("client", "load", "engines")
"""What neither the conclusion nor the search may import: figures are read, not made."""
READS_TABLES = {"conclude/faults.py": "engines"}
"""The known faults of an engine's builds are a table."""
_FREE = {"__init__", "_version"}
_OUTSIDE = {"lab", "benchmarks", "tests"}


def part_of(parts: tuple[str, ...]) -> str:
    """The folder (or top-level module) of `whet` that a path below src/whet belongs to."""
    return parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Every module named by an import anywhere in the file, relative ones made absolute.

    `from x import y` also yields `x.y`: y may be a module, and if it is a name, its first two
    parts still say which folder it came from.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # One dot is the file's own package, each further dot one level up.
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(
    source: Path, allowed: dict[str, set[str]], root: tuple[str, ...] = ("whet",)
) -> list[str]:
    """One sentence for each import that the table forbids, and each folder it does not know.

    `root` is the package whose folder is `source`.
    """
    parts = {part_of((entry.name,)) for entry in source.iterdir()} | set(allowed)
    parts -= _FREE
    found = []
    for file in sorted(source.rglob("*.py")):
        inside = file.relative_to(source).parts
        if inside == ("__init__.py",):
            importer, grants = root[-1], {"api"}
        else:
            importer = part_of(inside)
            if importer in _FREE:
                continue
            if importer not in allowed:
                found.append(f"{importer}: a part of whet that the layering table does not name")
                continue
            grants = allowed[importer] | {importer}
        grants = grants | {"_version"}
        package = [*root, *inside[:-1]]
        for line, module in imported_modules(ast.parse(file.read_text()), package):
            names = module.split(".")
            if names[0] in _OUTSIDE:
                found.append(f"{'/'.join(inside)}:{line}: {importer} may not import {names[0]}")
            part = next(iter(names[len(root) :]), None)
            if tuple(names[: len(root)]) != root or part not in parts:
                continue
            if part not in grants:
                found.append(f"{'/'.join(inside)}:{line}: {importer} may not import {part}")
    return sorted(set(found))


def circles(source: Path) -> list[str]:
    """The modules that import themselves over others, and those between two such circles."""
    files = {
        ".".join(("whet", *file.relative_to(source).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): file
        for file in source.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        package = ["whet", *file.relative_to(source).parts[:-1]]
        graph[module] = set()
        for _, name in imported_modules(ast.parse(file.read_text()), package):
            above = accumulate(name.split("."), "{}.{}".format)
            named = [each for each in above if each in files]
            graph[module] |= {*named[-1:]} - {module}
    while True:
        imported = set().union(*graph.values())
        ends = {module for module, names in graph.items() if not names or module not in imported}
        if not ends:
            return sorted(graph)
        graph = {module: names - ends for module, names in graph.items() if module not in ends}


def test_every_import_goes_down() -> None:
    assert violations(SOURCE, ALLOWED) == []


def test_the_stages_of_a_run_import_what_they_may() -> None:
    assert violations(SOURCE / "flow" / "run", RUN, ("whet", "flow", "run")) == []


@pytest.mark.parametrize("folder", ["conclude", "search"])
def test_no_figure_is_made_where_it_is_read(folder: str) -> None:
    """Neither the conclusion nor the search sends requests or starts servers."""
    found = []
    for file in (SOURCE / "flow" / "run" / folder).rglob("*.py"):
        spared = READS_TABLES.get(f"{folder}/{file.name}")
        for line, module in imported_modules(ast.parse(file.read_text()), []):
            if module.split(".")[1:2] in [[each] for each in MEASURING if each != spared]:
                found.append(f"{file.name}:{line}: {module}")
    assert found == []


def test_no_module_imports_itself_over_others() -> None:
    assert circles(SOURCE) == []


@pytest.mark.parametrize(
    "text",
    ["from whet.core import b", "def f():\n    from whet.core.b import g", "from . import b"],
)
def test_a_circle_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "core").mkdir()
    for name, words in {"a": text, "b": "import whet.core.c", "c": "import whet.core.a"}.items():
        (tmp_path / "core" / f"{name}.py").write_text(words)
    (tmp_path / "core" / "d.py").write_text("import whet.core.a")
    assert circles(tmp_path) == ["whet.core.a", "whet.core.b", "whet.core.c"]


@pytest.mark.parametrize("table", [ALLOWED, RUN])
def test_the_table_has_no_cycle(table: dict[str, set[str]]) -> None:
    settled: set[str] = set()
    while rest := [part for part in table if part not in settled]:
        ready = [part for part in rest if table[part] <= settled]
        assert ready, f"these import each other: {rest}"
        settled.update(ready)


def test_no_file_is_too_long() -> None:
    lengths = {
        str(file.relative_to(SOURCE)): len(file.read_text().splitlines())
        for file in SOURCE.rglob("*.py")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        (
            "predict/a.py",
            "from whet.quant.awq import scale",
            "predict/a.py:1: predict may not import quant",
        ),
        (
            "predict/a.py",
            "from lab.model import load",
            "predict/a.py:1: predict may not import lab",
        ),
        ("predict/a.py", "import whet.quant", "predict/a.py:1: predict may not import quant"),
        ("predict/a.py", "from whet import quant", "predict/a.py:1: predict may not import quant"),
        ("predict/a.py", "from ..quant import awq", "predict/a.py:1: predict may not import quant"),
        (
            "predict/deep/a.py",
            "from ... import quant",
            "predict/deep/a.py:1: predict may not import quant",
        ),
        (
            "core/a.py",
            "def f():\n    import whet.predict",
            "core/a.py:2: core may not import predict",
        ),
        ("flow/a.py", "import whet.cli", "flow/a.py:1: flow may not import cli"),
        ("cli/a.py", "import whet.quant", "cli/a.py:1: cli may not import quant"),
        ("decision/a.py", "import whet.cli", "decision/a.py:1: decision may not import cli"),
        (
            "extras/a.py",
            "import json",
            "extras: a part of whet that the layering table does not name",
        ),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert violations(tmp_path, ALLOWED) == [complaint]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "predict/a.py",
            "from whet.core.errors import WhetError\nfrom . import b\nfrom .b import c",
        ),
        ("cli/a.py", "from whet import __version__\nfrom whet.core import run\nimport whet.flow"),
        ("flow/a.py", "from whet.decision import decide"),
        ("core/a.py", "import numpy.core\nimport whetstone.plan"),
    ],
)
def test_an_allowed_import_passes(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert violations(tmp_path, ALLOWED) == []
