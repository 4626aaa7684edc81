"""The table of schemes: columns that scripts rely on, reasons told once, one line a scheme."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.report.forms import ALLOWED_TAGS, Page
from tests.report.run_setting import environment, model, quantized
from tests.report.run_texts import NASTY, Texts, around
from whet.core.records import (
    Distances,
    DocumentDistance,
    Estimate,
    QuantizedCheckpoint,
    SchemeOnServer,
    SchemeRow,
    SchemeSpeed,
    SchemeTable,
    TaskScore,
)
from whet.report.schemes.csv import write_schemes_csv
from whet.report.schemes.document import scheme_document, scheme_errors
from whet.report.schemes.files import print_schemes, write_scheme_reports
from whet.report.writers.html import render_html

PINNED = """\
scheme,recipe,weight_bytes,bits_per_weight,perplexity,perplexity_low,perplexity_high,\
perplexity_ratio,perplexity_ratio_low,perplexity_ratio_high,kl,kl_low,kl_high,\
flips,flips_low,flips_high,kl_p99,documents,positions,\
tasks_right,tasks_asked,tasks_lost,tasks_gained,task_scores,\
quantize_seconds,peak_memory_bytes,quantize_device,kernels,engine,served_perplexity,rounded,\
unit_error_mean,unit_error_max,unit_worst,\
calibration_samples,calibration_tokens,calibration_seed,not_made,not_measured,not_served,notes,\
loads,output_tps,serving_memory_bytes,\
distances_by,kl_top_k,kl_covered"""


def score(texts: Texts, right: int, *, paired: bool) -> TaskScore:
    return TaskScore(
        task=texts.task,
        n=96,
        right=right,
        score=around(right / 96, 0.05, 96),
        baseline_right=90 if paired else None,
        lost=4 if paired else None,
        gained=right - 86 if paired else None,
        p_value=0.69 if paired else None,
        detectable_drop=0.1,
    )


def served(texts: Texts, right: int, *, paired: bool) -> SchemeOnServer:
    return SchemeOnServer(
        engine="vllm 0.32.0 on cuda",
        kernels=(texts.log_line.removeprefix("INFO Using "),) if paired else (),
        tasks=(score(texts, right, paired=paired),),
        perplexity=around(5.52, 0.01, 200),
        reason=None,
        memory_bytes=71_000_000_000,
        speeds=(
            SchemeSpeed(load=1, output_tps=102.34, window_s=9.0),
            SchemeSpeed(load=8, output_tps=640.6, window_s=7.5)
            if paired
            else SchemeSpeed(load=8, output_tps=None, reason="trial 0 failed: no counters"),
        ),
    )


def distances(ratio: float) -> Distances:
    return Distances(
        perplexity=around(5.47 * ratio, 0.02, 200),
        reference_perplexity=around(5.47, 0.02, 200),
        perplexity_ratio=Estimate(value=ratio, low=ratio - 0.002, high=ratio + 0.002, samples=200),
        kl=around(0.0123, 0.1, 200),
        kl_p99=Estimate(value=0.21, low=None, high=None, samples=500, certified=False),
        flips=around(0.041, 0.1, 200),
        rounded=("weights",),
        documents=(DocumentDistance(tokens=500, nll=1.0, reference_nll=1.0, kl=0.1, flips=2),) * 2,
        data_sha256="ab" * 32,
        device="cuda",
        seconds=9.0,
    )


def row(name: str, done: QuantizedCheckpoint, texts: Texts, ratio: float) -> SchemeRow:
    found = distances(ratio)
    return SchemeRow(
        name=name,
        title=f"{done.method} {done.scheme} g128",
        weight_bytes=done.weight_bytes,
        bits_per_weight=done.bits_per_weight,
        checkpoint=done,
        perplexity=found.perplexity,
        distances=found,
        served=served(texts, 88, paired=True),
    )


def make_table(texts: Texts) -> SchemeTable:
    """The source, AWQ, rounding to nearest, one that could not be made and one not served."""
    source = SchemeRow(
        name="16bit",
        title="the source, bfloat16",
        weight_bytes=14_480_000_000,
        bits_per_weight=16.0,
        checkpoint=None,
        perplexity=around(5.47, 0.02, 200),
        distances=None,
        served=served(texts, 90, paired=False),
    )
    awq = quantized(texts)
    rtn = replace(awq, method="rtn", units=(), calibration=None, seconds=9.0)
    missing = SchemeRow(
        name="w8a8",
        title="smoothquant W8A8",
        weight_bytes=None,
        bits_per_weight=None,
        checkpoint=None,
        perplexity=None,
        distances=None,
        served=None,
        not_made=f"its inputs are not measured: {texts.failure}",
    )
    w8a16 = replace(
        row("w8a16", replace(awq, scheme="W8A16"), texts, 1.001),
        served=None,
        not_served=texts.failure,
    )
    return SchemeTable(
        model=texts.path,
        source=model(texts, 7_240_000_000, 32),
        environment=environment(texts),
        heldout="heldout.jsonl",
        rows=(
            source,
            row("w4a16-awq", awq, texts, 1.0136),
            row("w4a16-rtn", rtn, texts, 1.031),
            missing,
            w8a16,
        ),
    )


@pytest.fixture(scope="module")
def table() -> SchemeTable:
    return make_table(Texts())


def printed(table: SchemeTable, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_schemes(scheme_document(table), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def read(table: SchemeTable, path: Path) -> list[dict[str, str]]:
    write_schemes_csv(table, path)
    assert path.read_text(encoding="utf-8").splitlines()[0] == PINNED
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_one_line_a_scheme_with_what_was_measured(table: SchemeTable, tmp_path: Path) -> None:
    lines = read(table, tmp_path / "schemes.csv")
    assert [line["scheme"] for line in lines] == [
        "16bit",
        "w4a16-awq",
        "w4a16-rtn",
        "w8a8",
        "w8a16",
    ]
    awq = lines[1]
    assert (awq["perplexity_ratio"], awq["perplexity_ratio_high"]) == ("1.0136", "1.0156")
    assert (awq["kl"], awq["kl_p99"], awq["flips"]) == ("0.0123", "0.21", "0.041")
    assert (awq["documents"], awq["positions"]) == ("2", "1000")
    assert (awq["tasks_right"], awq["tasks_asked"]) == ("88", "96")
    assert (awq["tasks_lost"], awq["tasks_gained"]) == ("4", "2")
    assert awq["kernels"] == "MarlinLinearKernel for CompressedTensorsWNA16"
    # The worst of the made-up units: "down" where (7 layer + 3) mod 11 is 10, first at layer 1.
    assert awq["unit_worst"] == "layers.1.down"
    assert float(awq["unit_error_max"]) == pytest.approx(0.004 * 4 * 1.4 * 0.55)
    assert awq["peak_memory_bytes"] == "18253611008"


def test_speeds_and_memory_of_the_server(table: SchemeTable, tmp_path: Path) -> None:
    source, awq, *_, unserved = read(table, tmp_path / "schemes.csv")
    assert (source["loads"], source["output_tps"]) == ("1; 8", "102.34; ?")
    assert (awq["loads"], awq["output_tps"]) == ("1; 8", "102.34; 640.6")
    assert awq["serving_memory_bytes"] == "71000000000"
    assert unserved["loads"] == unserved["serving_memory_bytes"] == ""
    wide = printed(table, 220)
    assert "102 / 641" in wide
    assert "102 / –" in wide
    assert "16bit: no tokens/s at 8: trial 0 failed: no counters" in wide
    words = " ".join(Page(render_html(scheme_document(table))).words)
    assert "at 1 / 8" in words
    assert "with 1 and 8 requests in flight, over 7.5 s or more" in words
    assert "no interval, and small differences say nothing" in words
    assert "on a GPU up to a fixed share of the device, whatever the scheme" in words


def test_a_table_without_speeds_has_no_words_about_them(table: SchemeTable) -> None:
    rows = tuple(
        replace(row, served=replace(row.served, speeds=(), memory_bytes=None))
        for row in table.rows
        if row.served
    )
    text = printed(replace(table, rows=rows), 220)
    assert "okens/s" not in text
    assert "erving" not in text


def test_missing_is_empty_and_has_its_reason(table: SchemeTable, tmp_path: Path) -> None:
    source, _, rtn, missing, unserved = read(table, tmp_path / "schemes.csv")
    assert source["perplexity"] == "5.47"
    assert source["kl"] == source["tasks_lost"] == source["quantize_seconds"] == ""
    assert rtn["unit_error_mean"] == rtn["calibration_samples"] == ""
    assert missing["weight_bytes"] == missing["kl"] == missing["tasks_right"] == ""
    assert missing["not_made"].startswith("its inputs are not measured: the engine ran out")
    assert unserved["not_served"].endswith("lower gpu_memory_utilization")
    assert unserved["kl"] != ""


def test_the_console_keeps_what_matters_most(table: SchemeTable) -> None:
    wide, narrow = printed(table, 200), printed(table, 100)
    for text in (wide, narrow):
        assert "+1.4%" in text
        assert "4.1%" in text
        assert "91.7%" in text
        assert " Marlin" in text
    assert "KL p99" in wide
    assert "210 ?" in wide, "500 positions do not certify a 99th percentile"
    assert "KL p99" not in narrow
    assert "w8a8: not made: its inputs are not measured" in narrow
    assert max(map(len, narrow.splitlines())) <= 100


def test_what_several_rows_share_is_told_once(table: SchemeTable) -> None:
    rows = tuple(replace(row, served=None, not_served="no engine") for row in table.rows)
    every = printed(replace(table, rows=rows), 120)
    assert every.count("not served: no engine") == 1
    assert "every row: not served: no engine" in every
    some = printed(replace(table, rows=(table.rows[0], *rows[1:3])), 120)
    assert "w4a16-awq, w4a16-rtn: not served: no engine" in some


def test_a_scheme_that_measures_nothing_has_the_line_that_others_measured(
    table: SchemeTable,
) -> None:
    errors = scheme_errors(table)
    assert list(errors) == ["w4a16-awq", "w4a16-rtn", "w8a16"]
    assert list(errors["w4a16-awq"]) == ["qkv", "o", "gate_up", "down"]
    units = {unit.unit: unit for unit in quantized(Texts()).units}
    assert [y for _, y in errors["w4a16-awq"]["qkv"]] == [
        units[f"layers.{layer}.qkv"].error for layer in range(32)
    ]
    assert [y for _, y in errors["w4a16-rtn"]["qkv"]] == [
        units[f"layers.{layer}.qkv"].rtn_error for layer in range(32)
    ]


def test_units_that_stay_in_16_bit_are_not_drawn(table: SchemeTable) -> None:
    done = quantized(Texts())
    units = tuple(
        replace(unit, kept=True, error=0.0) if unit.unit == "layers.3.o" else unit
        for unit in done.units
    )
    mixed = row("mixed", replace(done, units=units, kept_scheme="16bit"), Texts(), 1.0)
    alone = replace(table, rows=(mixed,))
    layers = [layer for layer, _ in scheme_errors(alone)["mixed"]["o"]]
    assert layers == [at for at in range(32) if at != 3]


@pytest.mark.parametrize("texts", [Texts(), NASTY], ids=["plain", "hostile"])
def test_the_page_tells_every_row_and_takes_nothing_as_code(texts: Texts) -> None:
    source = render_html(scheme_document(make_table(texts)))
    page = Page(source)
    words = " ".join(page.words)
    for name in ("16bit", "w4a16-awq", "w4a16-rtn", "w8a8", "w8a16"):
        assert name in words
    assert source.count("<figure") == 4
    assert "512 samples, 131,072 tokens, seed 0" in words
    assert {tag for tag, _ in page.tags} <= ALLOWED_TAGS
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "\x1b" not in source
    assert "\u202e" not in source


def test_both_files_are_written(table: SchemeTable, tmp_path: Path) -> None:
    write_scheme_reports(table, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"schemes.csv", "schemes.html"}
