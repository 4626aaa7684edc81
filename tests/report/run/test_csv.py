"""``results.csv``: columns that scripts rely on, and cells that no spreadsheet runs."""

import csv
from pathlib import Path

import pytest

from whet.core.run import Run
from whet.report.run.cells_csv import neutral, write_csv

LEADING = "config,batch_size,ttft_p50_ms,ttft_p95_ms,tps_mean,vram_gb,cost_per_1m_tokens"


def read(view: Run, path: Path) -> list[dict[str, str]]:
    write_csv(view, path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_leading_columns_and_one_of_each_other_kind(whole: Run, tmp_path: Path) -> None:
    write_csv(whole, tmp_path / "results.csv")
    head = (tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()[0]
    assert head.startswith(f"{LEADING},")
    columns = head.split(",")
    assert len(columns) == len(set(columns)) == 80
    others = "tps_mean_low perplexity_ratio_high flips_low decision evidence starts bits_per_weight"
    assert set(others.split()) <= set(columns)


def test_one_line_a_cell(whole: Run, tmp_path: Path) -> None:
    lines = read(whole, tmp_path / "results.csv")
    assert [(line["config"], line["batch_size"]) for line in lines[:6]] == [
        ("fp16", "1"),
        ("fp16", "4"),
        ("fp16", "8"),
        ("fp16", "16"),
        ("fp16", "32"),
        ("awq", "1"),
    ]
    assert len(lines) == 25
    # ttft p50 of fp16 at 1 is (38 + 9.5) × 1.25 ms in the factory, its interval ± 4 %
    assert float(lines[0]["ttft_p50_ms"]) == pytest.approx(59.375)
    assert float(lines[0]["ttft_p50_ms_low"]) == pytest.approx(57.0)
    assert lines[0]["too_few_samples"] == "ttft_p95_ms"
    assert lines[4]["too_few_samples"] == ""


def test_the_weights_of_each_variant_have_their_size(whole: Run, tmp_path: Path) -> None:
    lines = {line["config"]: line for line in read(whole, tmp_path / "results.csv")}
    names = ("weight_bytes", "bits_per_weight", "quantize_seconds")
    assert [lines["fp16"][name] for name in names] == ["14480000000", "16", ""]
    assert [lines["awq+cache"][name] for name in names] == ["4130000000", "4.16", "312"]


def test_missing_is_empty_never_zero(whole: Run, tmp_path: Path) -> None:
    failed = next(
        line
        for line in read(whole, tmp_path / "results.csv")
        if (line["config"], line["batch_size"]) == ("awq+draft", "32")
    )
    assert failed["status"] == "failed"
    assert failed["evidence"] == "unproved"
    for name in ("ttft_p50_ms", "tps_mean", "vram_gb", "cost_per_1m_tokens", "acceptance_length"):
        assert failed[name] == ""
    assert "out of device memory" in failed["failure"]


def test_nothing_measured_gives_the_header_alone(begun: Run, tmp_path: Path) -> None:
    assert read(begun, tmp_path / "results.csv") == []


def test_distances_of_a_variant_are_on_each_of_its_lines(gated: Run, tmp_path: Path) -> None:
    lines = read(gated, tmp_path / "results.csv")
    awq = [line for line in lines if line["config"] == "awq"]
    assert {line["kl"] for line in awq} == {"0.0123"}
    assert {(line["kl_low"], line["kl_high"]) for line in awq} == {("0.011808", "0.012792")}
    assert {line["kl_p99"] for line in awq} == {"0.21"}
    assert {line["flips"] for line in awq} == {"0.031"}
    doubts = [line["too_few_samples"] for line in awq]
    assert doubts == [*["ttft_p95_ms kl_p99"] * 4, "kl_p99"]  # the last had 256 requests
    assert {line["kl"] for line in lines if line["config"] == "fp16"} == {""}


def test_formulas_are_neutralised(hostile: Run, tmp_path: Path) -> None:
    lines = read(hostile, tmp_path / "results.csv")
    assert len(lines) == 25
    failure = next(line["failure"] for line in lines if line["failure"])
    assert failure.startswith("'=cmd|")
    assert not any(value.startswith(("=", "@", "+")) for line in lines for value in line.values())


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_every_formula_start_is_known(text: str) -> None:
    assert neutral(text) == f"'{text}"


def test_plain_text_is_left_alone() -> None:
    assert neutral("awq+cache") == "awq+cache"
