"""The run report as a whole: every cell shown, nothing foreign taken as code."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from tests.report.forms import (
    ALLOWED_TAGS,
    FORMS,
    Page,
    as_json,
    bullets,
    html,
    markdown,
    nodes,
    printed,
    table,
)
from tests.report.run_texts import CONCURRENCY, SCRIPT, VARIANTS
from tests.run_copy import replace
from whet.core.load import Load
from whet.core.run import Run
from whet.core.store import RunStore
from whet.report.document import Chart
from whet.report.run.best import best_cell
from whet.report.run.files import print_decision, write_reports
from whet.report.run.setup import measured_line
from whet.report.run.verdict import verdict_section
from whet.report.writers.markdown import fenced, safe

RUNS = ("whole", "gated", "hostile", "interrupted", "begun")


@pytest.mark.parametrize("run", RUNS)
def test_the_page_holds_one_script_and_loads_nothing(
    run: str, request: pytest.FixtureRequest
) -> None:
    source = html(request.getfixturevalue(run))
    assert len(source.encode()) < 3_000_000
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.S)
    assert source.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in source
    for tag, attributes in Page(source).tags:
        assert tag in ALLOWED_TAGS
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "action", "formaction", "data", "xlink:href")
            if name == "href":
                assert value == "data:," or (value or "").startswith("#")
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_text_is_shown_as_text_in_every_form(hostile: Run) -> None:
    source = html(hostile)
    assert source.count("<script") == 1
    words = "".join(Page(source).words)
    assert words.count(SCRIPT) > 20
    assert "{{ 7*7 }}" in words
    for form in FORMS:
        assert "\x1b" not in form(hostile)
        assert "\u202e" not in form(hostile)
    assert "[link](javascript:alert(1))" in " ".join(printed(hostile).split())
    assert json.loads(as_json(hostile))["sections"]


def test_markdown_escapes_outside_its_fences(hostile: Run) -> None:
    fences = r"^(`{3,})[a-z]*\n.*?\n\1$"
    outside = re.sub(fences, "", markdown(hostile), flags=re.S | re.M)
    assert "<script" not in outside.replace(r"\<script", "")
    assert "](javascript" not in outside.replace(r"\](javascript", "")


def test_a_fence_outlasts_the_backticks_within() -> None:
    assert fenced("a ```` b").splitlines() == ["`````text", "a ```` b", "`````"]
    assert safe("a|b\n`c`") == r"a\|b \`c\`"


def test_every_cell_is_in_every_form(whole: Run) -> None:
    texts = [form(whole) for form in (html, markdown, as_json)]
    lines = texts[1].replace("*", "").splitlines()
    for name in VARIANTS:
        for size in CONCURRENCY:
            best = best_cell(whole, name)
            tables = 2 if best is not None and best.load == Load.at(size) else 1
            assert sum(line.startswith(f"| {name} | {size} |") for line in lines) == tables
    for cell in whole.cells:
        if cell.tps_mean is not None:
            rate = cell.tps_mean.value
            assert all(f"{rate:,.0f}" in text or f"{rate:.1f}" in text for text in texts)
    console = [line.split() for line in printed(whole, 180).splitlines()]
    assert {words[0] for words in console if words} >= set(VARIANTS)
    assert "failed: the engine ran out of device memory" in "".join(Page(texts[0]).words)


def test_the_status_is_apart_from_the_evidence_and_never_green_where_excluded(whole: Run) -> None:
    for form in FORMS[:2]:
        for status in (
            "excluded: quality",
            "recommended",
            "qualifies",
            "likely qualifies",
        ):
            assert status in form(whole), (form, status)
    source = html(whole)
    rows = re.findall(r'<tr class="struck">.*?</tr>', source, re.S)
    assert rows
    assert not any("recommended" in row for row in rows)
    assert "Serve line of awq+draft (excluded, do not deploy)" in source


def with_choice(run: Run, variant: str, *, different: bool) -> Run:
    """The run with another recommended variant, and whether its cost differs for certain."""
    decision = run.decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.difference is not None
    found = replace(decision.recommendation.difference, different=different)
    chosen = replace(decision.recommendation, variant=variant, difference=found, cheaper=different)
    return replace(run, decision=replace(decision, recommendation=chosen))


@pytest.mark.parametrize(
    ("variant", "different"), [("awq+cache", True), ("awq+cache", False), ("fp16", False)]
)
def test_only_a_saving_is_coloured_as_a_win(whole: Run, variant: str, different: bool) -> None:
    run = with_choice(whole, variant, different=different)
    assert ('<section class="card good" id="decision">' in html(run)) is different
    title = "Keep fp16" if variant == "fp16" else "Serve awq+cache"
    line = next(x for x in printed(run, colour=True).splitlines() if title in x)
    assert ("\x1b[1;32m" in line) is different


def test_a_figure_of_few_requests_is_marked(whole: Run) -> None:
    assert "125 ?" in html(whole)
    assert "125 ?" in markdown(whole)


def test_a_testbed_is_named_everywhere(whole: Run) -> None:
    target = replace(whole.models["target"], testbed="the target of whet's demo pair, widened")
    run = replace(whole, models={**whole.models, "target": target})
    for form in FORMS:
        assert "is a testbed" in " ".join(form(run).split())
        assert "is a testbed" not in " ".join(form(whole).split())


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_console_fits_its_terminal(whole: Run, width: int) -> None:
    text = printed(whole, width)
    serve_line = whole.engines["awq+cache"].serve_line
    lines = [line for line in text.splitlines() if line not in serve_line]
    assert max(map(len, lines)) <= width
    for name in ("TTFT p95", "Cost vs", "status"):
        assert name in text


def test_an_interrupted_run_says_so_everywhere(interrupted: Run) -> None:
    for form in FORMS:
        text = " ".join(form(interrupted).split())
        assert "This run is incomplete" in text
        assert "awq has no figures at concurrency 8, 16, 32" in text


def test_nothing_qualifies_is_an_answer(whole: Run) -> None:
    assert whole.decision is not None
    decision = replace(whole.decision, recommendation=None)
    for form in FORMS:
        text = form(replace(whole, decision=decision))
        assert "Nothing qualifies" in text
        assert "Serve awq+cache" not in text


def test_the_headline_says_how_sure_it_is(whole: Run) -> None:
    assert whole.decision is not None
    assert whole.decision.recommendation is not None
    words = str(verdict_section(whole.decision))
    assert "36.2% [33.1% … 39.0%] cheaper than fp16: $" in words
    assert "likely met: TTFT p95 needs 6 starts to be sure" in words
    change = whole.decision.recommendation.difference
    assert change is not None
    for low, said in ((0.9, "; 3 starts of each would show 36.2%"), (None, ": one start has no")):
        saving = replace(whole.decision.recommendation.saving, low=low)
        unsure = replace(
            whole.decision.recommendation,
            cheaper=False,
            saving=replace(saving, high=None) if low is None else saving,
            difference=replace(change, different=False),
        )
        words = str(verdict_section(replace(whole.decision, recommendation=unsure)))
        assert f"Cost not distinguished from fp16{said}" in words


def test_the_tested_differences_say_what_would_have_shown(whole: Run) -> None:
    page = markdown(whole)
    assert "1 comparison with fp16: at most a 5% chance" in page
    assert "would show" not in page.partition("## Decision matrix")[0], "it is distinguished"
    assert whole.decision is not None
    (change,) = whole.decision.differences
    alike = replace(whole.decision, differences=(replace(change, different=False),))
    assert "not distinguished: these starts would show 6.0%" in markdown(
        replace(whole, decision=alike)
    )


def test_a_decision_alone_can_be_printed(whole: Run) -> None:
    console = Console(file=io.StringIO(), width=100)
    assert whole.decision is not None
    print_decision(whole.decision, [whole], console)
    assert isinstance(console.file, io.StringIO)
    assert "Serve awq+cache" in console.file.getvalue()


@pytest.mark.parametrize("run", RUNS)
def test_every_file_is_written(run: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    write_reports(request.getfixturevalue(run), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {"charts"} == {"results.csv", "requests.parquet", "report.md", "report.html"}
    for link in re.findall(r"\]\((charts/[^)]*)\)", (tmp_path / "report.md").read_text()):
        svg = (tmp_path / link).read_text()
        assert svg.startswith("<svg")
        assert "<script" not in svg


def test_parquet_has_every_request(whole: Run, tmp_path: Path) -> None:
    write_reports(whole, tmp_path)
    stored = pq.read_table(tmp_path / "requests.parquet")
    assert stored.num_rows == 75  # 25 trials of 3 requests
    third = stored.slice(2, 1).to_pylist()[0]
    assert (third["error"], third["output_tokens"], third["chunk_ns"]) == ("timeout", None, [])
    first = stored.slice(0, 1).to_pylist()[0]
    assert (first["variant"], first["batch_size"], first["trial"]) == ("fp16", 1, 0)
    assert first["chunk_ns"] == [5_000_000, 9_000_000]
    assert "string" in str(stored.schema.field("detail").type)  # though every value is missing


def test_a_run_of_one_cell_is_drawn(whole: Run) -> None:
    run = replace(whole, cells=whole.cells[:1], variants=("fp16",))
    assert html(run).count("<figure") >= 4
    single = html(replace(run, loads=(Load.at(1),)))
    assert single.count("<figure") == 1, "a single load makes no curve"


def test_a_report_can_be_written_again_from_disk(whole: Run, tmp_path: Path) -> None:
    again = Run(RunStore.read(whole.root))
    for form in FORMS:
        assert form(again) == form(whole)


def test_the_cells_table_has_figures_with_their_intervals(whole: Run) -> None:
    rows = [line for line in markdown(whole).splitlines() if line.startswith("| fp16 | 1 |")]
    assert any("59.4<br>57.0 … 61.8" in row for row in rows)  # (38 + 9.5) × 1.25 ms, ± 4%
    matrix = table(whole, "matrix", f"Cheapest variant that qualifies on {whole.tier}")
    assert matrix
    assert any("excluded:" in line for line in bullets(whole, "best"))


def test_equal_rows_and_columns_of_the_matrix_are_one(whole: Run) -> None:
    """Three targets and three tolerances; the cells of a target do not depend on the tolerance."""
    assert whole.decision is not None
    caption = f"Cheapest variant that qualifies on {whole.tier}"
    rows = table(whole, "matrix", caption)
    assert {name: len(cells) for name, cells in rows.items()} == {
        "TTFT < 200 ms": 1,
        "TTFT < 500 ms": 1,
        "TTFT < 1 s": 1,
    }
    entries = [replace(whole.decision.matrix[0], ttft_target_ms=t) for t in (200.0, 500.0, 1000.0)]
    decision = replace(whole.decision, matrix=tuple(entries))
    run = replace(whole, decision=decision)
    assert list(table(run, "matrix", caption)) == ["TTFT < 200 ms, TTFT < 500 ms, TTFT < 1 s"]
    (row,) = re.findall(r"<tbody>(.*?)</tbody>", html(run).partition('id="matrix"')[2], re.S)[:1]
    assert "good" in row, "the recommended cell is marked in the row of all"


def test_a_serve_line_is_short_and_has_the_variables_of_the_spec(
    whole: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = f'--served-model-name m --speculative-config \'{{"model": "{tmp_path}/draft"}}\''
    own = replace(whole.engines["awq"].variant, env=(("VLLM_CPU_KVCACHE_SPACE", "1 2"),))
    for program in ("openai.api_server --model", "cli.main serve"):
        line = f"HF_HUB_OFFLINE=1 LD_PRELOAD=/x '{tmp_path}/my venv/python' -m vllm.entrypoints"
        line += f".{program} {tmp_path}/models/awq {flags}"
        engine = replace(whole.engines["awq"], variant=own, serve_line=line)
        code = measured_line(engine)
        assert (code.language, code.text) == (
            "sh",
            "VLLM_CPU_KVCACHE_SPACE='1 2' vllm serve models/awq --served-model-name m "
            '--speculative-config \'{"model": "draft"}\'',
        )
    other = f"python -m sglang.launch_server --model-path /mnt{tmp_path}/models/awq"
    engine = replace(engine, serve_line=other)
    assert measured_line(engine).text == other


def choice_of(run: Run) -> Mapping[str, Any] | None:
    (chart,) = (each for each in nodes(run, "decision") if isinstance(each, Chart))
    return chart.choice


def test_the_page_may_choose_among_cells_that_miss_nothing_but_the_first_token(whole: Run) -> None:
    data = choice_of(whole)
    assert data is not None
    assert whole.spec is not None
    assert data["limit"] == whole.spec.objective.recommend_ttft_ms
    assert data["decided"] == "awq+cache at 8"
    names = [each["name"] for each in data["cells"]]
    assert "awq+cache at 32" in names, "it misses TTFT p95"
    assert not [name for name in names if name.startswith("awq+draft at")], "its quality fails"
    assert "awq+cache at 16" not in names, "its evidence contradicts it"
    costs = [float(each["usd"].removeprefix("$")) for each in data["cells"]]
    assert costs == sorted(costs)
    assert data["ends"][0] < min(each["ttft"] for each in data["cells"])
    assert data["ends"][1] > data["limit"]


def test_there_is_nothing_to_choose_without_a_decision(whole: Run, interrupted: Run) -> None:
    assert choice_of(interrupted) is None
    assert whole.decision is not None
    nothing = replace(whole, decision=replace(whole.decision, recommendation=None))
    data = choice_of(nothing)
    assert data is not None
    assert data["decided"] is None


def test_a_caption_that_repeats_its_heading_is_for_screen_readers(whole: Run) -> None:
    source = html(whole)
    assert '<caption class="heard">Start-up times</caption>' in source
    assert "<caption>Perplexity on held-out text</caption>" in source


def test_the_page_explains_itself(whole: Run) -> None:
    source = html(whole)
    assert '<a href="#reading">How to read this</a>' in source
    assert "docs/reading.md" in source


def test_names_from_outside_stay_in_the_folder_and_out_of_the_drawing(
    whole: Run, tmp_path: Path
) -> None:
    done = whole.quantized["awq"]
    nasty = ("layers.0./../../../../escaped", "layers.1.on\x00load=x</text>\udc80")
    units = tuple(replace(done.units[0], unit=name) for name in nasty)
    quantized = {"awq": replace(done, method="awq only=1 href=x", units=units)}
    folder = tmp_path / "a" / "b" / "c" / "run"
    folder.mkdir(parents=True)
    write_reports(replace(whole, quantized=quantized), folder)
    assert {path.parent.name for path in tmp_path.rglob("*.svg")} == {"charts"}
    assert not list(tmp_path.rglob("escaped.svg"))


def test_charts_of_an_earlier_report_go(whole: Run, tmp_path: Path) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "old.svg").write_text("<svg/>")
    write_reports(whole, tmp_path)
    assert "old.svg" not in {path.name for path in (tmp_path / "charts").iterdir()}
