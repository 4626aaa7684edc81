"""Every scheme in one table: what has a row, what a stop keeps, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.quantize.compare_stage import TEXT, request, run, write_files
from tests.flow.stage import FakeEngine
from whet import quant
from whet.core.errors import EngineStartError, StorageError, UsageError
from whet.core.records import Distances, ResolvedEngine, SchemeTable, Variant, decode
from whet.core.spec import CalibrationSpec, EngineSpec
from whet.core.store import RunStore
from whet.flow.quantize import compare as story
from whet.flow.quantize.schemes import SCHEMES, choose_schemes
from whet.flow.quantize.table import scheme_table
from whet.quality.distance import DistanceMeter


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr("whet.flow.quantize.serve_check.get_engine", lambda _name: fake)
    return fake


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("compare"))


def test_schemes_of_llm_compressor_need_its_environment(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_LLM_COMPRESSOR", "/no/python")
    assert list(choose_schemes(None, CalibrationSpec())) == list(SCHEMES)
    wanted = request(files, "w4a16-rtn", "nvfp4")
    with pytest.raises(UsageError, match="cannot be started"):
        run(wanted, tmp_path / "out")
    assert not (tmp_path / "out" / "w4a16-rtn").exists()


def test_every_scheme_has_its_row_and_the_source_comes_first(
    files: Path, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an environment of llm-compressor, those that whet writes."""
    monkeypatch.delenv("WHET_LLM_COMPRESSOR", raising=False)
    table = run(request(files), tmp_path / "out")
    own = [name for name in SCHEMES if "fp4" not in name]
    assert [row.name for row in table.rows] == ["16bit", *own]
    source, *rows = table.rows
    assert source.bits_per_weight == 16
    assert source.distances is None
    assert source.perplexity is not None
    for row in rows:
        assert row.checkpoint is not None, row.not_made
        assert row.distances is not None, row.not_measured
        assert row.served is not None, row.not_served
        assert (tmp_path / "out" / row.name / "model.safetensors").exists()
        assert row.distances.reference_perplexity == source.perplexity
    bits = {row.name: row.bits_per_weight for row in rows}
    # One 16-bit scale for 128 or 32 weights of 4 bits, and a shape of 16 bytes a matrix.
    assert bits["w4a16-awq"] == pytest.approx(4 + 16 / 128, abs=0.02)
    assert bits["w4a16-awq-g32"] == pytest.approx(4 + 16 / 32, abs=0.02)
    assert bits["w4a16-awq-mixed"] <= 5
    rounded = {row.name: row.distances.rounded for row in rows if row.distances}
    assert rounded["w4a16-awq"] == ("weights",)
    assert rounded["w8a8"] == rounded["fp8-dynamic"] == ("weights", "activations")
    assert rounded["fp8-kv8"] == ("weights", "activations", "kv_cache")
    assert engine.started == ["16bit", *own], "one server at a time, the source's answers first"
    kept = json.loads((tmp_path / "out" / "schemes.json").read_text())
    assert decode(SchemeTable, kept) == table


def test_what_is_asked_of_the_engine(files: Path, tmp_path: Path, engine: FakeEngine) -> None:
    asked: list[Variant] = []
    resolve = engine.resolve

    def told(variant: Variant, spec: EngineSpec) -> ResolvedEngine:
        asked.append(variant)
        return resolve(variant, spec)

    engine.resolve = told  # type: ignore[method-assign]
    run(request(files, "w8a8", "fp8-kv8"), tmp_path / "out")
    args = {variant.name: dict(variant.engine_args) for variant in asked}
    assert {variant.name: variant.scheme for variant in asked} == {
        "16bit": "16bit",
        "w8a8": "W8A8-INT8",
        "fp8-kv8": "FP8",
    }
    assert args["fp8-kv8"]["kv_cache_dtype"] == "fp8"
    assert "kv_cache_dtype" not in args["w8a8"]
    # The longest document has 32 − 1 tokens, and one is asked for.
    assert args["16bit"]["max_model_len"] == 32
    assert all(each["enforce_eager"] is True for each in args.values()), "no speed is measured"
    assert not any(variant.prefix_cache for variant in asked)


def test_a_stopped_comparison_goes_on_and_measures_nothing_twice(
    files: Path, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, out = request(files, "w4a16-rtn", "w8a8"), tmp_path / "out"
    measured: list[str] = []
    measure = DistanceMeter.measure

    def once(self: DistanceMeter, candidate: Path, **more: Any) -> Distances:
        if measured:
            raise KeyboardInterrupt
        measured.append(candidate.name)
        return measure(self, candidate, **more)

    monkeypatch.setattr(DistanceMeter, "measure", once)
    with pytest.raises(KeyboardInterrupt):
        run(asked, out)
    table = scheme_table(RunStore.read(out))
    assert [row.distances is not None for row in table.rows] == [False, True, False]
    assert table.rows[2].not_measured == "not done yet; the same command goes on"
    before = (out / "distances" / "w4a16-rtn.json").read_bytes()

    def second(self: DistanceMeter, candidate: Path, **more: Any) -> Distances:
        measured.append(candidate.name)
        return measure(self, candidate, **more)

    monkeypatch.setattr(DistanceMeter, "measure", second)
    monkeypatch.setattr("whet.quant.quantize_many", None)  # nothing is left to make
    table = run(asked, out)
    assert measured == ["w4a16-rtn", "w8a8"]
    assert (out / "distances" / "w4a16-rtn.json").read_bytes() == before
    assert all(row.served is not None for row in table.rows)
    assert engine.started == ["16bit", "w4a16-rtn", "w8a8"]
    monkeypatch.setattr(story, "measure_quality", None)
    assert run(asked, out).rows == table.rows, "a finished one is only read"


def test_a_host_that_is_short_of_memory_takes_more_passes(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(files, "w4a16-awq", "w8a8", "fp8-dynamic", tasks=False)
    whole = run(asked, tmp_path / "whole")
    passes: list[list[str]] = []
    quantize_many = quant.quantize_many

    def counted(source: Path, wanted: Any, **more: Any) -> Any:
        passes.append(list(wanted))
        return quantize_many(source, wanted, **more)

    monkeypatch.setattr("whet.quant.quantize_many", counted)
    monkeypatch.setattr(story, "_HOST_SHARE", 0.0)
    parts = run(asked, tmp_path / "parts")
    assert passes == [["w4a16-awq"], ["w8a8"], ["fp8-dynamic"]]
    hashes = [
        [r.checkpoint.weights_sha256 for r in t.rows[1:] if r.checkpoint] for t in (whole, parts)
    ]
    assert len(hashes[0]) == 3
    assert hashes[0] == hashes[1]


def test_schemes_that_the_shapes_cannot_take_say_why(files: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "odd", intermediate_size=192)
    asked = request(files, "w4a16-awq", "w4a16-awq-g32", "w8a8", model=str(tmp_path / "odd"))
    table = run(asked, tmp_path / "out")
    by_name = {row.name: row for row in table.rows}
    assert "192 inputs, not a multiple of the group size 128" in str(by_name["w4a16-awq"].not_made)
    assert by_name["w4a16-awq"].not_served is None, "one reason is enough"
    assert by_name["w4a16-awq-g32"].distances is not None
    assert by_name["w8a8"].distances is not None


def test_a_server_that_fails_is_a_reason_and_no_end(
    files: Path, tmp_path: Path, engine: FakeEngine
) -> None:
    engine.refuses = {"w8a8"}
    table = run(request(files, "w4a16-rtn", "w8a8"), tmp_path / "out")
    assert table.rows[2].not_served == "CUDA out of memory; lower gpu_memory_utilization"
    assert table.rows[2].distances is not None
    assert table.rows[1].served is not None
    engine.refuses = set()
    table = run(request(files, "w4a16-rtn", "w8a8"), tmp_path / "out")
    assert table.rows[2].served is not None, "the same command tries it again"
    assert engine.started == ["16bit", "w4a16-rtn", "w8a8", "w8a8"]


def test_an_engine_that_cannot_serve_it_is_not_started(
    files: Path, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(resolved: ResolvedEngine) -> str | None:
        return "no kernel for a CPU" if resolved.variant.scheme == "W8A16" else None

    monkeypatch.setattr(engine, "unsupported", unsupported)
    table = run(request(files, "w8a16"), tmp_path / "out")
    assert table.rows[1].not_served == "no kernel for a CPU"
    assert engine.started == ["16bit"]


def test_without_an_engine_everything_else_is_there(
    files: Path, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_variant: Variant, _spec: EngineSpec) -> ResolvedEngine:
        raise EngineStartError("vLLM is not installed")

    monkeypatch.setattr(engine, "resolve", resolve)
    table = run(request(files, "w8a8"), tmp_path / "out")
    assert {row.not_served for row in table.rows} == {"vLLM is not installed"}
    assert table.rows[1].distances is not None


def test_no_tasks_starts_no_server(files: Path, tmp_path: Path, engine: FakeEngine) -> None:
    table = run(request(files, "w8a8", tasks=False), tmp_path / "out")
    assert {row.not_served for row in table.rows} == {"left out (--no-tasks)"}
    assert engine.started == []
    table = run(request(files, "w8a8", "w8a16"), tmp_path / "out")
    assert [row.name for row in table.rows] == ["16bit", "w8a8", "w8a16"]
    assert all(row.served is not None for row in table.rows), "and a later one adds to it"


@pytest.fixture
def begun(files: Path, tmp_path: Path) -> Path:
    run(request(files, "w4a16-rtn", tasks=False), tmp_path / "out")
    return tmp_path / "out"


def test_figures_of_two_kinds_never_share_a_table(files: Path, begun: Path) -> None:
    write_tiny_llama(begun.parent / "other", seed=3)
    text = begun.parent / "text.jsonl"
    text.write_text(json.dumps({"text": f"another {TEXT}"}))
    usual = request(files, "w4a16-rtn").quality
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "model": ({"model": str(begun.parent / "other")}, "the model's weights"),
        "calibration": ({"calibration": text}, "the calibration text"),
        "heldout": ({"quality": usual.model_copy(update={"heldout": text})}, "the held-out text"),
        "limits": (
            {"quality": usual.model_copy(update={"max_documents": 3})},
            "--max-documents, --max-tasks or --max-document-tokens",
        ),
        "recipes": (
            {"recipes": choose_schemes(["w4a16-rtn"], CalibrationSpec(samples=2))},
            "the recipe w4a16-rtn",
        ),
    }
    for change, told in changes.values():
        with pytest.raises(UsageError, match=f"was started with other values of {told}; restore"):
            run(request(files, "w4a16-rtn", **change), begun)


def test_a_folder_that_holds_something_else_is_left_alone(files: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(StorageError, match="exists and is not a comparison; remove it"):
        run(request(files, "w8a8"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_data_file_that_is_missing(files: Path, tmp_path: Path) -> None:
    asked = request(files, "w8a8", calibration=tmp_path / "gone.jsonl")
    with pytest.raises(UsageError, match=r"--calibration: no file at .*gone\.jsonl; correct"):
        run(asked, tmp_path / "out")
    assert run(request(files, "w8a8", tasks=False), tmp_path / "out").rows[1].checkpoint


def test_a_scheme_that_is_none() -> None:
    with pytest.raises(UsageError, match="unknown scheme 'w4a16-akw'; did you mean 'w4a16-awq'"):
        choose_schemes(["w4a16-akw"], CalibrationSpec())
