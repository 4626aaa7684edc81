"""Planted secrets and private prompts: in no file and no output but the run's ``inputs/``."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.conftest import patient, scripted, whet
from tests.cli.stage import Said, Whet
from tests.cli.test_bench import SMALL
from tests.cli.test_privacy import MARK, write_run
from tests.flow.stage import FakeEngine
from tests.scripted_server import scripted_server
from whet.core.redact import redact

__all__ = ["patient", "scripted", "whet"]
LINES = Path(__file__).with_name("secret_forms.txt").read_text().splitlines()
FORMS = [line for line in LINES if not line.startswith("#")]
ONE_OF_EACH = st.tuples(*(st.from_regex(form, fullmatch=True) for form in FORMS))
STEADY = settings(max_examples=4, deadline=None, derandomize=True, database=None)


@STEADY
@given(secrets=ONE_OF_EACH)
@pytest.mark.parametrize("around", ["{}", "key {}, or another", '{{"a": "{}"}}', "at={}&b=1"])
def test_a_secret_of_a_known_form_is_redacted(secrets: tuple[str, ...], around: str) -> None:
    shown = {form: redact(around.format(each)) for form, each in zip(FORMS, secrets, strict=True)}
    assert {form: text for form, text in shown.items() if re.search(form, text)} == {}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One secret of each form."""
    monkeypatch.setattr("whet.core.redact._spec_values", set())
    drawn: list[str] = []
    STEADY(given(ONE_OF_EACH)(lambda each: drawn.__setitem__(slice(None), each)))()
    return drawn


def texts_in(folder: Path) -> dict[str, str]:
    """Every file below a folder as text, by its path; tables and archives are opened."""
    texts = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.suffix == ".parquet":
            texts[name] = pd.read_parquet(path).to_csv()
        elif path.suffix == ".xz":
            with tarfile.open(path) as tar:
                files = [(each.name, tar.extractfile(each)) for each in tar if each.isfile()]
                texts |= {f"{name}/{n}": f.read().decode(errors="replace") for n, f in files if f}
        elif path.is_file():
            texts[name] = path.read_bytes().decode(errors="replace")
    return texts


def planted_in(
    texts: dict[str, str], result: list[Said], secrets: list[str]
) -> dict[str, list[str]]:
    """Where a word of the log or a secret is, as it is or as JSON writes it."""
    texts = texts | {f"output {number}": each.out + each.err for number, each in enumerate(result)}
    words = [MARK, *secrets, *(json.dumps(each)[1:-1] for each in secrets)]
    return {name: [each for each in words if each in text] for name, text in texts.items()}


def test_a_run_and_what_is_made_of_it(
    whet: Whet, scripted: FakeEngine, tmp_path: Path, secrets: list[str]
) -> None:
    path, log = write_run(tmp_path), tmp_path / "log.jsonl"
    lines = [
        line.replace(MARK, f"{MARK} {secrets[number % len(secrets)]}", 1)
        for number, line in enumerate(log.read_text().splitlines())
    ]
    log.write_text("\n".join(lines))
    data = yaml.safe_load(path.read_text())
    data["engine"]["env"] = {f"PLAIN_{number}": each for number, each in enumerate(secrets)}
    path.write_text("".join(f"# {each}\n" for each in secrets) + yaml.safe_dump(data))
    scripted.refuses = {"other"}
    scripted.refusal = f"the engine result {' '.join(secrets)}"
    root = tmp_path / "runs" / "tiny"
    result = [whet("run"), whet("report", root, "--export", "run.tar.xz"), whet("decide", root)]
    result += [whet("report", root, "--json"), whet("deploy", root, "-o", "bundle")]
    assert (result[0].code in (0, 9), result[1].code) == (True, 0), result[0].err + result[1].err
    log.unlink()
    path.unlink()
    planted = planted_in(texts_in(tmp_path), result, secrets)
    inputs = {f"runs/tiny/inputs/{name}.jsonl" for name in ("traffic", "heldout", "calibration")}
    assert {name for name, words in planted.items() if words} == inputs


def test_a_bench_of_a_server_that_repeats_secrets(
    whet: Whet, tmp_path: Path, secrets: list[str]
) -> None:
    notes = [f"--metadata=n{number}={each}" for number, each in enumerate(secrets)]
    words = (*SMALL, "--num-prompts", 4, "--save-result", "--save-detailed", "-o", "out", *notes)
    with scripted_server(status=400, message=" ".join(secrets)) as server:
        result = [whet("bench", server.url, *words)]
    with scripted_server() as server:
        result.append(whet("bench", server.url, *words, "--label", secrets[5]))
    texts = texts_in(tmp_path / "out")
    assert texts
    assert not any(planted_in(texts, result, secrets).values())
