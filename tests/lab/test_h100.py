"""The testbed's campaign: what is sent, what a sitting runs, and what its table says."""

import csv
import random
from pathlib import Path

import pytest
import torch
import yaml
from lab.h100 import SPEC, articles, chosen, filled, measure_static, pack, unpack
from lab.h100_shares import ShareRow, keep_shares
from lab.h100_table import (
    BYTES_PER_S,
    FLOP_PER_S,
    Drafting,
    StaticRow,
    Tokens,
    Work,
    bound,
    cost,
    static_csv,
    static_rows,
    table,
    without_paths,
    write_plot,
)

from whet.core.spec import parse_spec

STATIC = {
    "batch_size": "8",
    "batches": "2",
    "seconds": "17.85",
    "requests_per_s": "0.9",
    "output_tokens_per_s": "115",
    "input_tokens_mean": "1128.8",
    "dtype": "bfloat16",
    "attention": "sdpa",
    "transformers": "5.17.0",
}


def _row(config: str, size: int, tps: str, **other: str) -> dict[str, str]:
    row = dict.fromkeys(
        ("rps_mean", "cost_per_1m_tokens", "ttft_p50_ms", "tpot_p50_ms", "acceptance_length",
         "prefix_hit_rate"), ""
    )  # fmt: skip
    row |= {"config": config, "batch_size": str(size), "tps_mean": tps}
    return row | {"status": "complete", "evidence": "proved"} | other


def _cells(text: str, config: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {config} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_spec_is_one_that_a_run_takes() -> None:
    spec = parse_spec(yaml.safe_load(SPEC.read_text(encoding="utf-8")), base=Path("/nowhere"))
    assert spec.baseline in spec.variants
    assert {item.weights for item in spec.variants.values()} - {"16bit"} == set(spec.recipes)


def test_a_sitting_may_run_some_variants_and_changes_nothing_else() -> None:
    whole = yaml.safe_load(SPEC.read_text(encoding="utf-8"))
    some = yaml.safe_load(chosen(SPEC, "fp16,awq+cache,awq"))
    assert list(some.pop("variants")) == ["fp16", "awq+cache", "awq"]
    # Who comes up beside whom is no part of what is measured.
    assert some["load"].pop("together") == [["fp16", "awq+cache"]]
    del whole["load"]["together"], whole["variants"]
    assert some == whole


def test_an_unknown_variant_is_told_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match=r"no variant awk; there are fp16, awq\+cache"):
        chosen(SPEC, "fp16,awk")


def test_a_system_prompt_is_filled_up_to_its_tokens_and_never_beyond() -> None:
    found = filled("a b", ["c d", "e f", "g"], limit=6, count=lambda text: len(text.split()))
    assert found == "a b\nc d\ne f"


def test_articles_are_the_lines_of_the_catalogue_alone() -> None:
    assert articles("Rules:\n- one\nCatalogue:\nA lamp.\nA rug.") == ["A lamp.", "A rug."]
    assert articles("Rules:\n- one") == []


def test_a_bound_of_reads_alone_is_bandwidth_over_what_is_read() -> None:
    # 1 request of 10 tokens out reads 1 GB of weights ten times.
    tokens = Tokens(prompt=100, new=0, out=10)
    found = bound(1, Work(weight_bytes=1e9, linear=0, kv_bytes=0), tokens)
    assert found == pytest.approx(BYTES_PER_S / 1e10)
    # Keys and values at the mean length, 100 + 10 / 2, for each of 4 requests.
    found = bound(4, Work(weight_bytes=0, linear=0, kv_bytes=1000), tokens)
    assert found == pytest.approx(BYTES_PER_S / (10 * 105 * 1000))


def test_a_bound_of_arithmetic_alone_does_not_depend_on_the_batch() -> None:
    tokens = Tokens(prompt=100, new=50, out=10)
    for size in (1, 256):
        found = bound(size, Work(weight_bytes=0, linear=10**9, kv_bytes=0), tokens)
        assert found == pytest.approx(FLOP_PER_S / (2 * 60 * 10**9))


def test_reads_and_arithmetic_hide_behind_one_another() -> None:
    tokens = Tokens(prompt=0, new=50, out=10)
    work = Work(weight_bytes=1e9, linear=10**9, kv_bytes=0)
    reads, arithmetic = BYTES_PER_S / 1e10, FLOP_PER_S / (2 * 60 * 10**9)
    assert bound(1, work, tokens) == pytest.approx(min(reads, arithmetic))
    assert bound(10**6, work, tokens) == pytest.approx(arithmetic)


def test_a_draft_takes_fewer_steps_and_its_own_reads_and_arithmetic() -> None:
    tokens = Tokens(prompt=0, new=0, out=12)
    drafting = Drafting(proposals=4, length=3.0, weight_bytes=1e8, linear=10**8)
    # 4 steps of 1 GB and 4 times 0.1 GB; 4 steps of 5 tokens, 4 of them also the draft's.
    slow = Work(weight_bytes=1e9, linear=0, kv_bytes=0)
    assert bound(1, slow, tokens, drafting) == pytest.approx(BYTES_PER_S / (4 * 1.4e9))
    work = Work(weight_bytes=0, linear=10**12, kv_bytes=0)
    found = bound(1, work, tokens, drafting)
    assert found == pytest.approx(FLOP_PER_S / (2 * (20 * 10**12 + 16 * 10**8)))


def test_cost_is_the_price_of_the_time_that_a_million_tokens_take() -> None:
    assert cost(1e6 / 3600, 2.95) == pytest.approx(2.95)


def test_factors_are_against_the_plain_server_and_static_batches_of_the_same_size() -> None:
    rows = [_row("fp16", 8, "500"), _row("awq", 8, "1000"), _row("fp16", 4, "300")]
    four, eight = table(rows, [STATIC], price=2.95, bounds={}).split("### 8 in flight")
    assert _cells(eight, "awq")[3:5] == ["2.00", "8.7"]
    assert _cells(eight, "transformers, static")[3] == "0.23"
    assert _cells(four, "fp16")[3:5] == ["1.00", "–"]
    assert "transformers" not in four


def test_the_fastest_comes_first_and_a_missing_figure_is_no_nought() -> None:
    rows = [
        _row("fp16", 1, "100", rps_mean="1"),
        _row("gone", 1, "", status="failed", evidence=""),
        _row("awq", 1, "200", rps_mean="2"),
    ]
    text = table(rows, [], price=2.95, bounds={("awq", 1): 4.0})
    names = [line.split("|")[1].strip() for line in text.splitlines()[4:]]
    assert names == ["awq", "fp16", "gone"]
    assert _cells(text, "awq")[6] == "50%"
    assert _cells(text, "fp16")[6] == "–"
    assert _cells(text, "gone")[1:] == ["–"] * 10 + ["failed"]


def test_static_rows_survive_the_file_and_a_missing_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "static.csv"
    assert static_rows(path) == []
    path.write_bytes(static_csv([STATIC]))
    assert static_rows(path) == [STATIC]


def test_static_sizes_that_do_not_fit_are_left_out_and_no_size_is_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def static(_work: Path, size: int) -> StaticRow:
        if size > 16:
            raise torch.OutOfMemoryError
        return StaticRow(
            batch_size=size, batches=2, seconds=1.0, requests_per_s=2.0 * size,
            output_tokens_per_s=256.0 * size, input_tokens_mean=1.0, dtype="bfloat16",
            attention="sdpa", transformers="5",
        )  # fmt: skip

    monkeypatch.setattr("lab.h100._static", static)
    (tmp_path / "static.csv").write_bytes(static_csv([{**STATIC, "batch_size": "8"}]))
    measure_static(tmp_path, (4, 8, 16, 256))
    rows = static_rows(tmp_path / "static.csv")
    assert [row["batch_size"] for row in rows] == ["4", "8", "16"]
    assert rows[1]["requests_per_s"] == STATIC["requests_per_s"]


def test_a_kept_file_has_its_lines_and_indents_and_nobodys_paths(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("model:\n  target: /home/ann/models/big\nname: x\n", encoding="utf-8")
    assert without_paths(path) == "model:\n  target: big\nname: x\n"


def test_a_run_of_its_own_has_other_values_and_variants_of_a_sweep() -> None:
    changes = ["name=half", "load.batch_sizes=[1, 32]"]
    names = "fp16,fp8+eagle8+cache+tuned.k2,fp8+eagle8+cache+tuned.k6"
    made = yaml.safe_load(chosen(SPEC, names, changes))
    assert (made["name"], made["load"]["batch_sizes"]) == ("half", [1, 32])
    assert made["load"]["together"] == [names.split(",")[1:]]
    assert set(made["variants"]) == set(names.split(","))


def test_what_was_measured_goes_to_the_next_machine_and_the_weights_do_not(tmp_path: Path) -> None:
    run = tmp_path / "work" / "runs" / "a"
    (run / "trials").mkdir(parents=True)
    (run / "checkpoints" / "awq").mkdir(parents=True)
    (run / "checkpoints" / "awq" / "model.safetensors").write_bytes(b"weights")
    noise = random.Random(0).randbytes(50_000)
    (run / "trials" / "one.json").write_bytes(noise)
    (tmp_path / "work" / "static.csv").write_text("a,b\n")
    parts = tmp_path / "parts"
    made = pack(tmp_path / "work", parts, part_bytes=20_000)
    assert [path.name for path in made] == ["part_00", "part_01", "part_02"]
    unpack(parts, tmp_path / "next")
    assert (tmp_path / "next" / "runs" / "a" / "trials" / "one.json").read_bytes() == noise
    assert (tmp_path / "next" / "static.csv").exists()
    assert not (tmp_path / "next" / "runs" / "a" / "checkpoints").exists()
    made[1].unlink()
    with pytest.raises(SystemExit, match="are not whole"):
        unpack(parts, tmp_path / "other")
    with pytest.raises(SystemExit, match="has no part_00"):
        unpack(tmp_path / "work", tmp_path / "other")


def test_shares_of_a_variant_replace_those_of_an_earlier_sitting(tmp_path: Path) -> None:
    def row(config: str, rate: float | None) -> ShareRow:
        return ShareRow(
            config=config, batch_size=8, shared_prefix_share=0.5, requests=24,
            input_tokens_mean=1136.0, output_tokens_per_s=rate, low=None, high=None,
            prefix_hit_rate=0.44, acceptance_length=None, problem="",
        )  # fmt: skip

    path = tmp_path / "shares.csv"
    keep_shares(path, [row("a", 1.0)])
    keep_shares(path, [row("b", 2.0)])
    keep_shares(path, [row("a", None)])
    found = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [(r["config"], r["output_tokens_per_s"]) for r in found] == [("b", "2.0"), ("a", "")]


def test_the_plot_names_what_leads_and_the_single_levers(tmp_path: Path) -> None:
    rows = [_row("fp16", 1, "10"), _row("awq", 1, "15"), _row("best", 1, "40"), _row("x", 1, "30")]
    write_plot(tmp_path / "plot.svg", rows)
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "<!-- best -->" in text
    assert "<!-- awq -->" in text
    assert "<!-- x -->" not in text
