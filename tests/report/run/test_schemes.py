"""The section on quantization schemes: which variants it compares, and what a row has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.forms import nodes, section
from tests.report.run_factory import make_run
from whet.core.records.engine import ResolvedEngine
from whet.core.run import Run
from whet.core.store import RunStore
from whet.report.document import Cell, Table
from whet.report.run.schemes import comparable


def rows(run: Run) -> dict[str, dict[str, Cell]]:
    [table] = [node for node in nodes(run, "schemes") if isinstance(node, Table)]
    heads = [f"{column.name} {column.unit}".strip() for column in table.columns]
    return {row.cells[0].text: dict(zip(heads, row.cells, strict=True)) for row in table.rows}


def changed(root: Path, variant: str, **change: object) -> Run:
    """The made run with another setting of one variant."""
    make_run(root)
    with RunStore.open(root, resume=True) as store:
        item = store.get("variants", variant, ResolvedEngine)
        assert item is not None
        store.put("variants", variant, replace(item, variant=replace(item.variant, **change)))
    return Run.read(root)


def test_only_variants_with_other_weights_and_nothing_else_are_compared(whole: Run) -> None:
    assert comparable(whole) == ["fp16", "awq"]
    part = section(whole, "schemes")
    assert part is not None
    assert not part.on_console, "two schemes are in most runs"


def test_another_setting_is_no_comparison(tmp_path: Path) -> None:
    run = changed(tmp_path, "awq", engine_args=(("max_num_seqs", 8),))
    assert comparable(run) == []
    assert section(run, "schemes") is None


@pytest.mark.parametrize(("scales", "names"), [(True, ["fp16", "awq"]), (False, [])])
def test_a_kv_cache_of_the_checkpoints_own_scales_is_part_of_the_scheme(
    tmp_path: Path, scales: bool, names: list[str]
) -> None:
    args = (("kv_cache_dtype", "fp8"),)
    assert comparable(changed(tmp_path, "awq", engine_args=args, kv_scales=scales)) == names


def test_a_row_has_size_speed_answers_and_time(gated: Run) -> None:
    fp16, awq = rows(gated)["fp16"], rows(gated)["awq"]
    expected = {
        "recipe": "awq W4A16 g128",
        "size": "3.85 GiB",
        "bits per weight": "4.16",
        "tok/s at 32": "1,918",
        "memory GB": "21.4",
        "perplexity change": "+0.60%",
        "tasks right": "88.7%",
        "time to quantize": "5 min 12 s",
    }
    assert {head: awq[head].text for head in expected} == expected
    assert awq["tasks right"].detail == "−25 +14", "over all tasks"
    assert awq["perplexity change"].detail == "+0.32% … +0.88%"
    assert awq["KL millinats"].text != "–"
    assert (fp16["recipe"].text, fp16["bits per weight"].text) == ("16bit", "16.00")
    assert {fp16[head].text for head in ("perplexity change", "time to quantize")} == {"–"}


def test_a_speed_without_evidence_is_struck(whole: Run) -> None:
    outcomes = {load: whole.evidence("awq", load) for load in whole.loads}
    tones = {load: rows(whole)["awq"][f"tok/s at {load}"].tone for load in whole.loads}
    bad = ("contradicted", "unproved")
    assert tones == {load: "struck" if outcomes[load] in bad else "plain" for load in whole.loads}


def test_an_interrupted_run_shows_what_it_has(interrupted: Run) -> None:
    heads = set(rows(interrupted)["awq"])
    assert {"bits per weight", "tok/s at 1"} <= heads
    assert not {"tasks right", "KL millinats", "perplexity change"} & heads
