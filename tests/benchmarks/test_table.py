"""The benchmark's tables: what is written, and that nobody's paths are in it."""

import csv
from pathlib import Path

import pytest
from benchmarks.jobs import last_words
from benchmarks.quantize import summary
from benchmarks.table import Row, scrub, write_rows

ROW: Row = {"tool": "whet", "method": "awq", "peer_batch": None, "failure": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /home/ann/models/llama-8b/config.json", "cannot open config.json"),
        ("in '/tmp/quantize-x1/whet-awq-0' (no space)", "in 'whet-awq-0' (no space)"),
        ("~/secret/place.bin: gone", "place.bin: gone"),
        ("2.5 tokens/s, W4A16/g128, 1/s folded", "2.5 tokens/s, W4A16/g128, 1/s folded"),
        ("two\nlines\tof it", "two lines of it"),
        ("see https://host/a/b and /a/b.py:3", "see https://host/a/b and b.py:3"),
        ("token hf_abcdefghijklmnop", "token [redacted]"),
    ],
)
def test_no_path_and_no_secret_leaves_the_machine(text: str, expected: str) -> None:
    assert scrub(text) == expected


def test_a_missing_value_is_an_empty_field_and_a_zero_is_not(tmp_path: Path) -> None:
    row = ROW | {"load_s": 0.0, "total_s": 12.3456789, "failure": "no, /root/x/y failed"}
    write_rows([{"save_s": 1.0}, row], tmp_path / "new" / "runs.csv")
    with (tmp_path / "new" / "runs.csv").open(encoding="utf-8", newline="") as file:
        _, read = csv.DictReader(file)
    assert (read["save_s"], read["load_s"], read["total_s"]) == ("", "0", "12.3457")
    assert read["failure"] == "no, y failed"


def test_the_summary_is_the_mean_over_seeds_with_its_range_and_tells_failures() -> None:
    rows = [
        ROW | {"total_s": 10.0},
        ROW | {"total_s": 14.0},
        ROW | {"failure": "broke"},
        ROW | {"method": "gptq", "failure": "cannot read /a/b/c"},
    ]
    first, second = summary(rows).splitlines()[2:]
    assert first == "| whet awq + refit | 2 | – | 12.0 (10.0–14.0) | – | – |"
    assert second.startswith("| whet gptq + refit | 0 | cannot read c |")


def test_the_summary_keeps_another_batch_of_the_peer_apart() -> None:
    peer = ROW | {"tool": "peer", "peer_batch": 1, "total_s": 9.0}
    rows = [peer, peer | {"peer_batch": 16, "total_s": 3.0}]
    first, second = summary(rows).splitlines()[2:]
    assert first.startswith("| peer awq | 1 | – | 9.0 |")
    assert second.startswith("| peer awq, batch 16 | 1 | – | 3.0 |")


def test_last_words_are_the_error_and_not_its_traceback() -> None:
    log = "loading…\nTraceback (most recent call last):\n  File x\nValueError: no such scheme\n\n"
    assert last_words(log) == "ValueError: no such scheme"
    assert last_words(" \n") == ""
