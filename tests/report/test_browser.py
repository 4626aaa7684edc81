"""The page in a real browser: it renders, runs nothing, and fits a phone."""

import json
import re
import shutil
import struct
import subprocess
import zlib
from html import escape, unescape
from pathlib import Path

import axe_core_python
import numpy as np
import pytest

from tests.report.forms import html, nodes
from whet.core.run import Run
from whet.report.document import Chart
from whet.report.run import run_document
from whet.report.writers.html import write_html

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> str:
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium was found; install chromium to test the page in a browser")


def visit(browser: str, page: Path, profile: Path, *flags: str) -> str:
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


def pixels(png: Path) -> np.ndarray:
    """Height × width × 3, 0 to 1, of an 8-bit PNG without interlacing (RFC 2083)."""
    data, at, packed = png.read_bytes(), 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    channels = {2: 3, 6: 4}[colour]
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    rows = np.zeros((height, width * channels), np.int64)
    above = np.zeros(width * channels, np.int64)
    for y in range(height):
        above = rows[y] = _unfilter(int(raw[y, 0]), raw[y, 1:].astype(np.int64), above, channels)
    return rows.reshape(height, width, channels)[..., :3] / 255


def _unfilter(kind: int, line: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    if kind == 0:
        return line
    if kind == 2:
        return (line + above) % 256
    out = line.copy()
    for x in range(len(out)):
        left, corner = (out[x - step], above[x - step]) if x >= step else (0, 0)
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + above[x]) // 2
        else:
            p = left + above[x] - corner
            guess = min((left, above[x], corner), key=lambda value: abs(p - value))
        out[x] = (out[x] + guess) % 256
    return out


def test_a_hostile_page_renders_and_runs_nothing(
    browser: str, hostile: Run, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_html(run_document(hostile), page)
    dom = visit(browser, page, tmp_path / "profile", "--dump-dom")
    assert "Serve awq+cache at 8 requests in flight" in dom
    assert dom.count("<figure") >= 5
    assert dom.count("<script") == 1
    assert dom.rstrip().endswith("</html>")


def test_the_page_paints_light_dark_and_narrow(browser: str, whole: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_html(run_document(whole), page)
    shots = {}
    for name, size, scheme in (
        ("light", "1280,900", 1),
        ("dark", "1280,900", 0),
        ("narrow", "500,900", 1),
    ):
        shot = tmp_path / f"{name}.png"
        options = (f"--window-size={size}", f"--screenshot={shot}")
        colours = f"--blink-settings=preferredColorScheme={scheme}"
        visit(browser, page, tmp_path / f"profile-{name}", *options, colours)
        shots[name] = pixels(shot)
    assert shots["light"].mean() > 0.8
    assert shots["dark"].mean() < 0.25
    # Nothing is wider than the phone: its right-hand margin is the page's own colour all the way.
    assert shots["narrow"][300:, -8:].std() < 0.02


def run_in(
    browser: str, text: str, folder: Path, script: str, *flags: str, width: int = 1280
) -> str:
    """Return what ``script`` stores as ``result``, run at the end of a page without its policy.

    The page is a frame of ``width``, which may be narrower than a window.
    """
    page = folder / "report.html"
    text = text.replace("http-equiv", "data-off")
    text = escape(text.replace("</body>", f"<script>{script}</script></body>"))
    frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{text}"></iframe>'
    page.write_text(f'<!doctype html><meta charset="utf-8"><body>{frame}</body>')
    dom = visit(
        browser, page, folder / "profile", "--virtual-time-budget=20000", "--dump-dom", *flags
    )
    (result,) = re.findall('data-result="(.*?)"', dom)
    return unescape(result)


def test_the_pages_policy_lets_its_script_run(browser: str, whole: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_html(run_document(whole), page)
    dom = visit(browser, page, tmp_path / "profile", "--dump-dom")
    assert dom.count(">Copy</button>") == 1 + len(whole.engines)
    assert '<div class="choice">' in dom
    assert re.search(r"<output>awq\+cache at 8: \$0.\d+ per 1M output tokens, TTFT p95 ", dom)


CHOOSE = """
const plot = document.querySelector("figure[data-choice]");
const line = () => plot.querySelector('[aria-label="limit line"]').getAttribute("transform");
const field = plot.querySelector("[type=number]");
const shown = () => plot.querySelector("output").textContent;
const results = [[shown(), line()]];
for (const ms of LIMITS) {
  field.value = ms;
  field.dispatchEvent(new Event("input"));
  results.push([shown(), line(), document.querySelectorAll("tr.won").length]);
}
top.document.body.dataset.result = JSON.stringify(results);
"""


def test_another_limit_names_the_cheapest_cell_below_it(
    browser: str, whole: Run, tmp_path: Path
) -> None:
    (chart,) = (each for each in nodes(whole, "decision") if isinstance(each, Chart))
    assert chart.choice is not None
    cells = chart.choice["cells"]
    limit = sorted(each["ttft"] for each in cells)[3]
    best = next(each["name"] for each in cells if each["ttft"] < limit)
    script = CHOOSE.replace("LIMITS", json.dumps([limit, 0.5]))
    first, other, none = json.loads(run_in(browser, html(whole), tmp_path, script))
    assert first[0].startswith("awq+cache at 8: ")
    assert other[0].startswith(f"{best}: ")
    assert other[2] >= 1, "its rows are marked"
    assert none[0].startswith("No configuration qualifies")
    assert none[2] == 0
    assert len({first[1], other[1], none[1]}) == 3, "the line moves"


SORT = """
const tables = [...document.querySelectorAll("table[data-sort]")];
const table = tables.find((each) => each.caption.textContent === "All cells");
const names = [...table.tHead.rows[0].cells].map((each) => each.firstChild.firstChild.textContent);
const at = names.indexOf("TTFT p95");
const rows = () => [...table.tBodies[0].rows].filter((row) => !row.hidden);
const column = () => rows().map((row) => text(row.cells[at]));
const button = table.tHead.rows[0].cells[at].querySelector("button");
button.click();
const up = column();
button.click();
const down = column();
const filter = table.parentElement.previousElementSibling.querySelector("input");
filter.value = "awq+CACHE";
filter.dispatchEvent(new Event("input"));
top.document.body.dataset.result = JSON.stringify([up, down, column().length]);
"""


def test_cells_are_sorted_and_filtered(browser: str, whole: Run, tmp_path: Path) -> None:
    up, down, count = json.loads(run_in(browser, html(whole), tmp_path, SORT))
    figures = [float(each.removesuffix(" ?").replace(",", "")) for each in up[:-1]]
    assert figures == sorted(figures)
    assert (up[-1], down[-1]) == ("–", "–"), "the failed cell is last"
    assert down[:-1] == up[-2::-1]
    assert (len(up), count) == (25, 5)


@pytest.mark.parametrize("scheme", [1, 0], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_axe_finds_no_barrier(
    browser: str, whole: Run, tmp_path: Path, width: int, scheme: int
) -> None:
    """The page with every detail open; its content policy goes, as it forbids axe to run."""
    axe = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    report = (
        "axe.run().then(({violations}) => {top.document.body.dataset.result = 'violations: ' + "
        "JSON.stringify([innerWidth, violations.map(v => [v.id, v.nodes[0].html])])})"
    )
    found = run_in(
        browser,
        html(whole).replace("<details", "<details open"),
        tmp_path,
        f"{axe}</script><script>{report}",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=1400,1000",
        width=width,
    )
    assert found == f"violations: [{width},[]]"
