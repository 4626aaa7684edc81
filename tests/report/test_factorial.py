"""Levers alone and together in every form of the report, and nothing where nothing was told."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from tests.report.run_texts import HOSTILE, SCRIPT
from tests.run_copy import replace
from whet.core.records import Estimate, FactorialView, Interaction, LeverEffect
from whet.core.store import RunStore, write_json
from whet.report import RunView, load_run, print_report, render_html, render_markdown
from whet.report.factorial import factorial_note, factorial_sentences, factorial_tables
from whet.report.factorial_plot import brief, draw_factorial, factorial_plots

AWQ, SPEC = "weights=awq", "speculation=draft_model K=4"


def around(value: float, *, certified: bool = True) -> Estimate:
    return Estimate(
        value=value, low=value * 0.9, high=value * 1.1, samples=200, certified=certified
    )


def effect(lever: str, size: int, value: float, metric: str = "tps_mean") -> LeverEffect:
    return LeverEffect(
        lever=lever,
        context=(),
        batch_size=size,
        metric=metric,
        reference="fp16",
        candidate=lever,
        ratio=around(value),
        noise_floor=0.05,
        verdict="better",
    )


def pair(size: int, value: float, verdict: str, metric: str = "tps_mean") -> Interaction:
    return Interaction(
        levers=(AWQ, SPEC),
        context=(),
        batch_size=size,
        metric=metric,
        variant="awq+spec",
        observed=around(1.8 * value),
        product=around(1.8),
        ratio=around(value),
        noise_floor=0.07,
        verdict=verdict,
        sentence=f"{metric} at {size}: {value}: {verdict}",
    )


def found(*interactions: Interaction) -> FactorialView:
    effects = [effect(x, size, v) for size in (1, 16) for x, v in ((AWQ, 1.5), (SPEC, 1.2))]
    return FactorialView(
        baseline="fp16",
        levers=(AWQ, SPEC),
        effects=(*effects, effect(AWQ, 1, 1.3, "ttft_p95_ms")),
        interactions=interactions,
        unmeasured=("a × b: not told, as no cell that counts has b alone",),
    )


@pytest.fixture
def told(whole: RunView) -> RunView:
    view = found(
        pair(1, 1.0, "multiplicative"),
        pair(16, 0.8, "fight"),
        pair(1, 1.2, "help", "ttft_p95_ms"),
    )
    return replace(whole, factorial=view)


def printed(view: RunView) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(view, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_run_without_a_view_has_no_section(whole: RunView) -> None:
    assert whole.factorial is None, "a run of an older version"
    assert factorial_tables(whole) == factorial_plots(whole) == factorial_sentences(whole) == ()
    assert 'id="levers"' not in render_html(whole)
    assert "#levers" not in render_html(whole)
    assert "alone and together" not in render_markdown(whole)


def test_a_run_that_told_nothing_has_no_section(whole: RunView) -> None:
    view = FactorialView(baseline="fp16", levers=(), effects=(), interactions=(), unmeasured=())
    empty = replace(whole, factorial=view)
    assert render_html(empty) == render_html(whole)
    assert render_markdown(empty) == render_markdown(whole)
    assert printed(empty) == printed(whole)


def test_of_what_a_run_does_not_tell_a_few_are_printed(told: RunView) -> None:
    assert told.factorial is not None
    lacking = tuple(f"a × b{at}: not told, as no cell that counts has b alone" for at in range(20))
    many = replace(told, factorial=replace(told.factorial, unmeasured=lacking))
    sentences = factorial_sentences(many)
    assert sum("not told" in sentence for sentence in sentences) == 8
    assert sentences[-1] == "12 more are in the run's factorial/all.json."


def test_the_view_is_read_from_the_run(whole: RunView, told: RunView) -> None:
    store = RunStore.read(whole.root)
    write_json(store.path("factorial", "all.json"), told.factorial)
    try:
        assert load_run(store).factorial is None, "nothing that the journal does not name"
        store._journal["factorial", "all"] = {"status": "complete"}
        assert load_run(store).factorial == told.factorial
    finally:
        store.path("factorial", "all.json").unlink()
        store.path("factorial").rmdir()


def test_those_that_fight_are_named_first(told: RunView) -> None:
    assert factorial_sentences(told) == (
        "tps_mean at 16: 0.8: fight.",
        "ttft_p95_ms at 1: 1.2: help.",
        "Of 3 interactions, 1 multiply as measured and 0 cannot be told: one that matters "
        "could go unseen.",
        "a × b: not told, as no cell that counts has b alone.",
    )
    assert "Of 2 interactions of throughput" in printed(told)
    assert "ttft_p95_ms" not in printed(told)


def test_an_uncertified_percentile_names_nobody(told: RunView) -> None:
    unsure = replace(pair(1, 0.5, "fight", "ttft_p95_ms"), ratio=around(0.5, certified=False))
    view = replace(told, factorial=found(unsure))
    assert "fight" not in " ".join(factorial_sentences(view))
    assert "0.500 ?" in render_html(view)


def test_a_table_has_a_line_a_company_and_a_gap_where_nothing_was_measured(told: RunView) -> None:
    throughput, ttft = factorial_tables(told)
    assert [row.name for row in throughput.effects] == [AWQ, SPEC]
    assert throughput.sizes == (1, 16)
    assert [cell and cell.shown.text for cell in throughput.interactions[0].cells] == [
        "1.00",
        "0.800",
    ]
    assert (ttft.sizes, [row.name for row in ttft.effects]) == ((1,), [AWQ])
    lacking = replace(told, factorial=found(pair(16, 0.8, "fight")))
    assert factorial_tables(lacking)[0].interactions[0].cells[0] is None


def test_markdown_has_the_tables(told: RunView) -> None:
    text = render_markdown(told)
    assert "| Throughput, effect | company | 1 | 16 |" in text
    line = next(x for x in text.splitlines() if x.startswith(f"| {AWQ} × speculation"))
    assert "speculation=draft\\_model K=4 | alone | 1.00 (" in line
    assert r"0.800 (0.720 … 0.880)<br>fight |" in line


def test_chance_is_said_where_there_are_many(told: RunView) -> None:
    assert "by chance" not in factorial_note(told)
    many = replace(told, factorial=found(*[pair(1, 1.0, "multiplicative")] * 40))
    assert "Of 40 interactions about 2 miss 1 by chance alone." in factorial_note(many)


def test_the_plot_holds_every_dot_inside_its_box(told: RunView) -> None:
    plots = factorial_plots(told)
    assert [plot.batch_size for plot in plots] == [1, 16]
    assert [line.label for line in plots[1].lines] == [
        "over fp16",
        "awq",
        "speculation",
        "awq × speculation",
    ]
    root = ET.fromstring(str(draw_factorial(plots[1])))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    dots = [g for g in root.iter("g") if g.get("class", "").startswith("dot")]
    places = [tuple(map(float, re.findall(r"[\d.]+", g.attrib["transform"]))) for g in dots]
    assert len(places) == 4  # two effects, the product and what was observed
    assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
    assert sum("hollow" in g.get("class", "") for g in dots) == 1
    # 1.5 and the product 1.8 lie right of 1.2; observed 1.44 lies left of its product.
    awq, spec, product, observed = (x for x, _ in places)
    assert spec < observed < awq < product


def test_a_setting_is_told_where_two_levers_share_a_name() -> None:
    levers = (AWQ, "speculation=ngram K=2", "speculation=ngram K=4", "max_num_seqs=8")
    assert brief((AWQ, "max_num_seqs=8"), levers) == "awq × max_num_seqs"
    assert brief(("speculation=ngram K=2",), levers) == "speculation=ngram K=2"
    joined = ("weights=x + kv_cache_dtype=fp8", "a=1 + b=2")
    assert brief(joined, joined) == "x + kv_cache_dtype=fp8 × a=1 + b=2"


def test_foreign_names_are_text(told: RunView) -> None:
    assert told.factorial is not None
    first, *rest = told.factorial.effects
    nasty = replace(first, lever=f"X={HOSTILE}", reference=HOSTILE, candidate=HOSTILE)
    view = replace(told, factorial=replace(told.factorial, effects=(nasty, *rest)))
    source = render_html(view)
    assert SCRIPT not in source
    assert "\x1b" not in source
    assert "\u202e" not in source
    assert "<script" not in render_markdown(view).replace(r"\<script", "")
