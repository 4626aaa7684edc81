"""The page in a real browser: it renders, runs nothing, and fits a phone."""

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import axe_core_python
import numpy as np
import pytest

from whet.core.run import Run
from whet.report.run import run_document
from whet.report.writers.html import render_html, write_html

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
    assert "<script" not in dom
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


@pytest.mark.parametrize(("width", "scheme"), [(1280, 1), (500, 0)], ids=["light", "narrow dark"])
def test_axe_finds_no_barrier(
    browser: str, whole: Run, tmp_path: Path, width: int, scheme: int
) -> None:
    """The page with every detail open; its content policy goes, as it forbids axe to run."""
    axe = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    text = (
        render_html(run_document(whole))
        .replace("http-equiv", "data-off")
        .replace("<details", "<details open")
    )
    report = (
        "axe.run().then(({violations}) => {document.body.dataset.axe = 'violations: ' + "
        "JSON.stringify(violations.map(v => [v.id, v.nodes[0].html]))})"
    )
    page = tmp_path / "report.html"
    page.write_text(
        text.replace("</body>", f"<script>{axe}</script><script>{report}</script></body>")
    )
    dom = visit(
        browser,
        page,
        tmp_path / "profile",
        f"--window-size={width},900",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=20000",
        "--dump-dom",
    )
    assert re.findall('data-axe="(.*?)"', dom) == ["violations: []"]
