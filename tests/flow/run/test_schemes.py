"""``preset: schemes`` from the spec to the report: one run measures every scheme."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.stage import FakeEngine, tiny_spec
from tests.report.forms import FORMS, section
from whet.core.protocols import Silent
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.spec.recipe import SCHEMES
from whet.core.store import RunStore
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.report.document import Table
from whet.report.run.files import write_reports


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def spec_of(folder: Path, **recipe: Any) -> Spec:
    """The preset on a model that takes every scheme, with little calibration text."""
    text = folder / "heldout.jsonl"
    cheap = {"calibration": {"source": str(text), "samples": 8, "max_tokens": 32}}
    spec = tiny_spec(
        folder,
        preset="schemes",
        recipes={name: {**own, **cheap, **recipe} for name, own in SCHEMES.items()},
        variants={},
        load={"order": "blocks", "concurrency": [1, 2], "trials": 1, "confirm": False}
        | {"min_requests": 4, "requests_per_slot": 2, "warmup_requests": 1},
    )
    shape = {"hidden_size": 256, "head_dim": 128, "num_hidden_layers": 1}
    write_tiny_llama(Path(spec.model.target), dtype="float32", **shape)
    return spec


def rows_of(view: Run) -> dict[str, dict[str, str]]:
    """The table's rows by variant, each cell by its column's name and unit."""
    part = section(view, "schemes")
    assert part is not None
    assert part.on_console
    [table] = [node for node in part.nodes if isinstance(node, Table)]
    heads = [f"{column.name} {column.unit}".strip() for column in table.columns]
    lines = [dict(zip(heads, [cell.text for cell in row.cells], strict=True)) for row in table.rows]
    return {line["config"]: line for line in lines}


@pytest.mark.full
def test_every_scheme_is_a_variant_of_one_run(engine: FakeEngine, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with RunStore.open(root) as store:
        run(spec_of(tmp_path), Recorder(store=store, observer=Silent()), engines=engine)
    assert engine.started == ["fp16", *SCHEMES]
    view = Run.read(root)
    assert view.missing == ()
    assert set(view.quantized) == set(SCHEMES)
    rows = rows_of(view)
    assert list(rows) == ["fp16", *SCHEMES]
    bits = {name: float(row["bits per weight"]) for name, row in rows.items()}
    # One 32-bit scale, as the model, for 128 or 32 weights of 4 bits, and a shape per matrix.
    assert bits["fp16"] == 32
    assert bits["w4a16-awq"] == pytest.approx(4 + 32 / 128, abs=0.02)
    assert bits["w4a16-awq-g32"] == pytest.approx(4 + 32 / 32, abs=0.02)
    assert bits["w4a16-awq-mixed"] <= 5
    for row in rows.values():
        assert float(row["tok/s at 1"].replace(",", "")) > 0
        assert float(row["tok/s at 2"].replace(",", "")) > 0
        assert row["memory GB"] == "1.00"
    assert rows["w8a8"]["recipe"] == "smoothquant W8A8"
    assert rows["w8a8"]["time to quantize"] != rows["fp16"]["time to quantize"] == "–"
    for form in FORMS:
        assert "Quantization schemes" in form(view)
    assert_columns(root, bits)


def assert_columns(root: Path, bits: dict[str, float]) -> None:
    """``results.csv`` has the sizes too."""
    write_reports(Run.read(root), root)
    lines = list(csv.DictReader((root / "results.csv").read_text().splitlines()))
    for line in lines:
        assert float(line["bits_per_weight"]) == pytest.approx(bits[line["config"]], abs=0.01)
        assert int(line["weight_bytes"]) > 0
        assert (line["quantize_seconds"] == "") == (line["config"] == "fp16")


def test_a_scheme_that_cannot_run_here_is_left_out_with_its_reason(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, root = spec_of(tmp_path, method="rtn"), tmp_path / "run"
    write_tiny_llama(Path(spec.model.target), dtype="float32", intermediate_size=192)
    monkeypatch.setattr(
        engine,
        "unsupported",
        lambda item: "no kernel for a CPU" if item.variant.scheme == "W8A16" else None,
    )
    with RunStore.open(root) as store:
        run(spec, Recorder(store=store, observer=Silent()), skip_infeasible=True, engines=engine)
    view = Run.read(root)
    assert "192 inputs, not a multiple of the group size 128" in view.left_out["w4a16-awq"]
    assert view.left_out["w8a16"]
    assert {"fp16", "w4a16-awq-g32", "w8a8"} <= set(rows_of(view))
    assert not {"w4a16-awq", "w8a16"} & set(rows_of(view))
