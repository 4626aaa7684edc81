"""Check names and texts against the word list: `check_words.py [PATH ...]`.

Prints `file:line: 'word' → replacement` and exits 1 if a banned word is used. The list is in
words.toml. Without a path the whole repository is checked, except what words-todo.txt names.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ("src/whet", "docs", "scripts", "benchmarks", "lab", "README.md", "CONTRIBUTING.md")
TEXTS = {".md", ".j2", ".html", ".yaml", ".yml"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Problem(NamedTuple):
    file: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: '{self.word}' → {self.instead}"


@cache
def word_list() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]], re.Pattern[str]]:
    """The banned names, the banned prose patterns, and the pattern of exempt names."""
    words = tomllib.loads((ROOT / "scripts" / "words.toml").read_text())
    spaced = {pattern.replace(" ", r"\s+"): instead for pattern, instead in words["prose"].items()}
    prose = [(re.compile(pattern), instead) for pattern, instead in spaced.items()]
    return words["names"], prose, re.compile("|".join(words["exempt"]["names"]), re.IGNORECASE)


@cache
def stored_fields() -> set[str]:
    """The banned names that records may have, because stored runs have them as keys."""
    words = tomllib.loads((ROOT / "scripts" / "words.toml").read_text())
    return set(words["exempt"]["stored_fields"])


def check_name(name: str) -> Iterator[tuple[str, str]]:
    """Yield the identifier and its replacement for each banned word inside it."""
    banned, _, exempt = word_list()
    for word in _WORD.findall(exempt.sub("", name)):
        if word.lower() in banned:
            yield name, banned[word.lower()]


def check_prose(text: str, first_line: int) -> Iterator[tuple[int, str, str]]:
    """Yield line, phrase and replacement. A phrase may go over a line break."""
    for pattern, instead in word_list()[1]:
        for match in pattern.finditer(text):
            yield (
                first_line + text.count("\n", 0, match.start()),
                " ".join(match.group().split()),
                instead,
            )


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node introduces."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.arg():
            yield node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr
        case ast.alias(asname=str()):
            yield node.asname


def check_python(source: str, file: str) -> Iterator[Problem]:
    """Check the names, docstrings, messages and comments of a module."""
    for name, instead in check_name(Path(file).stem):
        yield Problem(file, 1, name, instead)
    stored = stored_fields() if file.startswith("src/whet/core/records/") else set()
    for node in ast.walk(ast.parse(source)):
        for bound in set(bound_names(node)) - stored:
            for name, instead in check_name(bound):
                yield Problem(file, getattr(node, "lineno", 1), name, instead)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for line, word, instead in check_prose(node.value, node.lineno):
                yield Problem(file, line, word, instead)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for line, word, instead in check_prose(token.string, token.start[0]):
                yield Problem(file, line, word, instead)


def check_file(path: Path) -> list[Problem]:
    """Return the problems of one file, in the order of its lines."""
    file = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
    source = path.read_text()
    if path.suffix == ".py":
        return sorted(set(check_python(source, file)), key=lambda problem: problem.line)
    return [Problem(file, *problem) for problem in sorted(check_prose(source, 1))]


def main(arguments: list[str]) -> int:
    todo = (ROOT / "scripts" / "words-todo.txt").read_text().split()
    exempt = tomllib.loads((ROOT / "scripts" / "words.toml").read_text())["exempt"]["paths"]
    skipped = tuple(str(ROOT / name) for name in ([] if arguments else todo) + exempt)
    count = 0
    for start in [Path(name).resolve() for name in arguments] or [ROOT / name for name in CHECKED]:
        if not start.exists():
            sys.exit(f"{start}: no such file or folder; give paths below {ROOT}")
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.suffix in {".py", *TEXTS} and not str(path).startswith(skipped):
                for problem in check_file(path):
                    print(problem)
                    count += 1
    if count:
        print(f"{count} banned words; scripts/words.toml lists them with what to write instead")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
