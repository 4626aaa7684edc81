"""The task files of harness_tasks/ with their data, made from the demo pair's held-out tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.quality.files import write_lines

TASKS = Path(__file__).with_name("harness_tasks")
CHOICES = 4
_KINDS = (
    re.compile(r"[\d.]+ EUR"),
    re.compile(r"[\d.]+ kg"),
    re.compile(r"\d+ months"),
    re.compile(r"\d+ days"),
    re.compile(r"[A-Z]{2}-\d{3}"),
    re.compile(r"\d+"),
    re.compile(r"[a-z]+"),
    re.compile(r"[A-Z][a-z]+ [a-z ]+"),
)


def write_tasks(folder: Path) -> Path:
    """A folder for ``include_path``: both task files, and 96 and 64 documents."""
    from whet.data import write_inputs

    folder.mkdir(parents=True, exist_ok=True)
    write_inputs(folder / "demo")
    lines = (folder / "demo" / "tasks.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    recall = [row for row in rows if row["task"] == "recall"]
    write_lines(folder / "desk_recall.jsonl", [_choice(row, recall) for row in recall])
    sums = [row for row in rows if row["task"] == "arithmetic"]
    write_lines(
        folder / "desk_sums.jsonl",
        [{"prompt": chat(row["messages"]), "expected": row["expected"]} for row in sums[:64]],
    )
    for source in TASKS.glob("*.yaml"):
        text = source.read_text(encoding="utf-8").replace("DATA", str(folder))
        (folder / source.name).write_text(text, encoding="utf-8")
    return folder


def chat(messages: Sequence[Mapping[str, str]]) -> str:
    """As the pair's chat template writes it, up to where the reply begins."""
    turns = "".join(f"<|{turn['role']}|>{turn['content']}<|end|>" for turn in messages)
    return f"<|bos|>{turns}<|assistant|>"


def _choice(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The right answer among three of its own kind, at a place that moves with the document."""
    kind, number = _kind(row["expected"]), int(row["id"].rsplit("-", 1)[1])
    others = sorted({other["expected"] for other in rows if _kind(other["expected"]) == kind})
    others = [other for other in others if other != row["expected"]] or ["rust", "mint", "navy"]
    wrong = [others[(number + step) % len(others)] for step in range(CHOICES - 1)]
    answer = number % CHOICES
    choices = [f"{text}<|end|>" for text in (*wrong[:answer], row["expected"], *wrong[answer:])]
    return {"prompt": chat(row["messages"]), "choices": choices, "answer": answer}


def _kind(answer: str) -> int:
    return next((i for i, form in enumerate(_KINDS) if form.fullmatch(answer)), len(_KINDS))
