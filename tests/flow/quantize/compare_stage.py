"""A small comparison: its model and data files, and one call of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.checkpoint_factory import write_tiny_llama
from whet.core.protocols import Silent
from whet.core.records import SchemeTable
from whet.core.spec import CalibrationSpec, QualitySpec
from whet.flow.quantize.compare import compare
from whet.flow.quantize.compare_job import CompareRequest, open_comparison
from whet.flow.quantize.schemes import choose_schemes

TEXT = "the order was shipped on monday and the parcel arrived on friday"


def write_files(folder: Path) -> Path:
    """A model, calibration text, held-out text and one task."""
    write_tiny_llama(folder / "model", hidden_size=256, head_dim=128)
    lines = [json.dumps({"text": f"{TEXT} {i}"}) for i in range(12)]
    (folder / "text.jsonl").write_text("\n".join(lines))
    task = {"id": "1", "task": "sum", "messages": [{"role": "user", "content": "1+1"}]}
    (folder / "tasks.jsonl").write_text(
        json.dumps({**task, "expected": "2", "scorer": "number", "max_tokens": 2})
    )
    return folder


def request(files: Path, *names: str, **change: Any) -> CompareRequest:
    quality = QualitySpec(
        heldout=files / "text.jsonl", tasks=files / "tasks.jsonl", max_documents=6, max_tokens=32
    )
    usual: dict[str, Any] = {
        "model": str(files / "model"),
        "recipes": choose_schemes(names or None, CalibrationSpec(samples=8, max_tokens=32)),
        "quality": quality,
        "calibration": files / "text.jsonl",
        "device": "cpu",
    }
    return CompareRequest(**{**usual, **change})


def run(asked: CompareRequest, out: Path) -> SchemeTable:
    with open_comparison(out) as store:
        return compare(asked, store, Silent())
