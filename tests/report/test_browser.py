"""The page in a real browser: it renders, follows no link outward, and fits a phone."""

import shutil
import subprocess
from pathlib import Path

import pytest

from whet.report import RunView, write_html

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


def ask(browser: str, page: Path, profile: Path, *flags: str) -> str:
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


def test_hostile_page_renders_and_runs_nothing(
    browser: str, hostile: RunView, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_html(hostile, page)
    dom = ask(browser, page, tmp_path / "profile", "--dump-dom")
    assert "Serve awq+cache with 8 requests in flight" in dom
    assert dom.count('class="chart"') == 10  # 4 load, quality/cost, speculation, 4 unit errors
    assert "<script" not in dom
    assert dom.rstrip().endswith("</html>")


def test_page_paints_light_dark_and_narrow(browser: str, whole: RunView, tmp_path: Path) -> None:
    from matplotlib.image import imread

    page = tmp_path / "report.html"
    write_html(whole, page)
    shots = {}
    for name, size, more in (
        ("light", "1280,900", "--blink-settings=preferredColorScheme=1"),
        ("dark", "1280,900", "--blink-settings=preferredColorScheme=0"),
        ("narrow", "500,900", "--blink-settings=preferredColorScheme=1"),
    ):
        shot = tmp_path / f"{name}.png"
        options = (f"--window-size={size}", f"--screenshot={shot}", more)
        ask(browser, page, tmp_path / f"profile-{name}", *options)
        shots[name] = imread(shot)[..., :3]
    assert shots["light"].mean() > 0.8
    assert shots["dark"].mean() < 0.25
    assert shots["narrow"].shape[1] == 500
    # nothing is wider than the phone: its right-hand margin is the page's own colour all the way
    margin = shots["narrow"][200:, -8:]
    assert margin.std() < 0.02
