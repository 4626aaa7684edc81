"""One value for one thing: what the first screen and the console print is in the records."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.run.test_stored_runs import unpacked
from tests.report.forms import html, printed
from whet.core.format import number, percent, significant
from whet.core.protocols import Silent
from whet.core.records.codec import encode
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.conclude.conclude import conclude
from whet.report.run.cells_csv import write_csv

REPOSITORY = Path(__file__).parents[3]
RUNS = {
    "a CPU": REPOSITORY / "results" / "cpu-demo" / "run.tar.xz",
    "an H200": REPOSITORY / "src" / "whet" / "demo" / "recorded" / "h200-7b-testbed.tar.xz",
}


@pytest.fixture(params=RUNS.values(), ids=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A stored run that measured its finalists again, decided by today's code."""
    stored = unpacked(request.param, tmp_path)
    with RunStore.open(stored.root, resume=True) as store:
        conclude(store, Silent())
    return Run.read(stored.root)


def values(record: object) -> Iterator[float]:
    """Every number of a record, and those of its sentences about answers."""
    if isinstance(record, dict):
        for each in record.values():
            yield from values(each)
    elif isinstance(record, list):
        for each in record:
            yield from values(each)
    elif isinstance(record, int | float) and not isinstance(record, bool):
        yield float(record)


def written(value: float) -> set[str]:
    """A value in every form in which a report writes one."""
    shares = (value, value - 1, 1 - value, 1 / value - 1 if value else 0.0)
    forms = {number(value), significant(value, 3), f"{value:g}", f"{value:,.0f}", f"{value:,.1f}"}
    for share in shares:
        forms |= {percent(share), f"{100 * share:.1f}", f"{100 * share:.2f}", f"{100 * share:g}"}
    return {each.strip("+-%$").replace(",", "") for each in forms}


def printed_numbers(run: Run, text: str) -> set[str]:
    """The numbers of a text, without names that hold digits."""
    names = (*run.variants, run.name, run.tier, *(metric for metric in ("p50", "p95", "16-bit")))
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, " ")
    return {each.replace(",", "").rstrip(".") for each in re.findall(r"\d[\d,]*\.?\d*", text)}


def first_screen(run: Run) -> str:
    """The verdict with its tiles, up to the chart, without mark-up."""
    source = html(run)
    section = source[source.index('id="decision"') :]
    return re.sub(r"<[^>]+>", " ", section[: section.index("<figure")])


def test_what_is_printed_is_one_value_of_the_records(run: Run) -> None:
    assert run.spec is not None
    assert run.decision is not None
    quality = [encode(record) for record in run.quality.values()]
    spec = encode(run.spec)
    records = [json.loads(json.dumps(encode(run.decision))), quality, spec["objective"]]
    records += [spec["hardware"], spec["load"], [encode(cell) for cell in run.cells]]
    known = {text for value in values(records) for text in written(value)}
    known |= {str(len(run.cells)), *map(str, range(1, 17))}  # cells, and counts in words
    for record in run.quality.values():  # right answers are counted over all tasks
        sums = [(task.right, task.n, task.baseline_right or 0) for task in record.tasks]
        known |= {str(sum(each)) for each in zip(*sums, strict=True)}
    known |= printed_numbers(run, run.spec.hardware.price_source or "")
    console = "\n".join(printed(run, 120).splitlines()[-20:])
    for text in (first_screen(run), console):
        assert printed_numbers(run, text) <= known


def test_what_the_selection_cost_is_in_the_folded_column_alone(run: Run, tmp_path: Path) -> None:
    assert run.decision is not None
    chosen = run.decision.recommendation
    assert chosen is not None
    assert chosen.measured_again
    cell = run.cell(chosen.variant, chosen.load)
    assert cell is not None
    assert cell.cost_per_1m_tokens == chosen.cost_per_1m_tokens
    assert cell.selected_cost is not None
    before = significant(cell.selected_cost.value, 3)
    console = "\n".join(printed(run, 120).splitlines()[-20:])
    for text in (first_screen(run), console):
        assert before not in printed_numbers(run, text)
    write_csv(run, tmp_path / "results.csv")
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    [row] = [
        each
        for each in rows
        if (each["config"], each["batch_size"]) == (chosen.variant, str(chosen.load.value))
    ]
    assert float(row["cost_per_1m_tokens"]) == pytest.approx(chosen.cost_per_1m_tokens.value, 1e-4)
    assert float(row["selected_cost_per_1m_tokens"]) == pytest.approx(
        cell.selected_cost.value, 1e-4
    )
    entries = [each for each in run.decision.matrix if each.variant == chosen.variant]
    assert {each.cost_per_1m_tokens for each in entries if each.load == chosen.load} == {
        chosen.cost_per_1m_tokens
    }
