"""Distances through servers: for models of which two float32 copies do not fit memory."""

from __future__ import annotations

import csv
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.flow.gate_stage import Model, ModelEngine
from tests.flow.quantize.compare_stage import request, run, write_files
from whet.core.errors import EngineStartError, UsageError
from whet.core.protocols import Server, Silent
from whet.core.records import ResolvedEngine, SchemeTable
from whet.flow.quantize.compare import compare
from whet.flow.quantize.compare_job import open_comparison
from whet.quality import loading
from whet.quality.distance import DistanceMeter
from whet.report.schemes.csv import write_schemes_csv
from whet.report.schemes.document import scheme_document

NAMES = ("w4a16-rtn", "w8a8")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModelEngine:
    fake = ModelEngine()
    monkeypatch.setattr("whet.flow.quantize.serve_check.get_engine", lambda _name: fake)
    return fake


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda _device: 1000)
    monkeypatch.setattr(DistanceMeter, "__init__", None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("compare"))


class Heard(Silent):
    """Remembers the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def by_name(table: SchemeTable) -> dict[str, Any]:
    return {row.name: row for row in table.rows}


def words_of(table: SchemeTable, folder: Path) -> tuple[str, list[dict[str, str]]]:
    """The report's text, and the rows of the CSV."""
    write_schemes_csv(table, folder / "table.csv")
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    return str(scheme_document(table)), rows


def test_a_model_too_large_for_float32_is_measured_on_the_server(
    files: Path, tmp_path: Path, engine: ModelEngine, short_of_memory: None
) -> None:
    engine.models = [Model(), Model(moves=1.0, loss=0.1), Model()]
    heard = Heard()
    with open_comparison(tmp_path / "out") as store:
        table = compare(request(files, *NAMES), store, heard)
    assert any(
        note.startswith("distances are measured on the server: both models in float32 need")
        for note in heard.notes
    )
    rows = by_name(table)
    moved, same = (rows[name].distances for name in NAMES)
    assert moved.top_k == same.top_k == 5
    assert moved.kl.value > 0.001
    assert moved.perplexity_ratio.value == pytest.approx(1.105, abs=1e-3)
    assert moved.reference_perplexity == rows["16bit"].perplexity
    assert (same.kl.value, same.flips.value) == (pytest.approx(0, abs=1e-6), 0)
    assert same.rounded == ()
    text, lines = words_of(table, tmp_path)
    assert "measured on the servers, each in its own arithmetic: KL over the 5 likeliest" in text
    assert "both models in float32" not in text
    assert [line["distances_by"] for line in lines] == ["", "server", "server"]
    assert 0 < float(lines[1]["kl_covered"]) < 1
    assert run(request(files, *NAMES), tmp_path / "out").rows == table.rows, "only read"


def test_a_folder_keeps_to_the_way_it_was_started_with(
    files: Path, tmp_path: Path, engine: ModelEngine
) -> None:
    asked = request(files, "w8a8", server_distances=True)
    engine.models = [Model(), Model()]
    first = run(asked, tmp_path / "out")
    assert by_name(first)["w8a8"].distances.top_k == 5
    engine.models = [Model()]
    more = run(request(files, *NAMES), tmp_path / "out")
    assert by_name(more)["w4a16-rtn"].distances.top_k == 5, "though memory would do"
    engine.models = [Model(), Model()]
    run(request(files, "w8a8"), tmp_path / "other")
    with pytest.raises(UsageError, match="leave --server-distances out to resume"):
        run(asked, tmp_path / "other")


def test_without_a_server_for_the_source_there_is_nothing_to_compare_with(
    files: Path, tmp_path: Path, engine: ModelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.models = [Model(), Model()]
    own = engine.serve

    def serve(resolved: ResolvedEngine, *, log: Path) -> AbstractContextManager[Server]:
        if resolved.variant.name == "16bit":
            raise EngineStartError("CUDA out of memory")
        return own(resolved, log=log)

    monkeypatch.setattr(engine, "serve", serve)
    table = run(request(files, "w8a8", server_distances=True), tmp_path / "out")
    source, row = table.rows
    assert source.not_served == "CUDA out of memory"
    assert row.served is not None
    assert row.not_measured == "the 16-bit model was not served"


def test_a_server_that_names_no_tokens_leaves_the_reason(
    files: Path, tmp_path: Path, engine: ModelEngine
) -> None:
    engine.models = [Model(), Model(scores_prompts=False)]
    asked = request(files, "w8a8", server_distances=True)
    row = by_name(run(asked, tmp_path / "out"))["w8a8"]
    assert row.distances is None
    assert "leaves prompt_logprobs out" in row.not_measured


def test_without_servers_the_row_says_what_is_missing(
    files: Path, tmp_path: Path, engine: ModelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short:
        short.setattr(loading, "free_bytes", lambda _device: 1000)
        row = by_name(run(request(files, "w8a8", tasks=False), tmp_path / "out"))["w8a8"]
        assert "both models in float32 need" in row.not_measured
        engine.models = [Model(), Model()]
        table = run(request(files, "w8a8"), tmp_path / "out")
    assert by_name(table)["w8a8"].distances.top_k == 5, "with servers the same folder goes on"
