"""``whet break-even``: what it refuses, and one map on scripted servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.stage import Whet, write_spec
from tests.flow.break_even_stage import Physics, spec_with_draft, stage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--k", "two"), "--k 'two': whole numbers are needed, such as 2,4,6"),
        (("--k", "0"), "K must be 1 to 1,024; give --k 2,4,6"),
        (("--levels", "0.5,x"), "--levels '0.5,x': shares are needed, such as 0.3,0.5,1"),
        (("--k", "9" * 20), "K must be 1 to 1,024; give --k 2,4,6"),
        (("--levels", "nan"), "level nan is not a share; give --levels from 0 to 1"),
        (("--levels", "2"), "level 2 is not a share; give --levels from 0 to 1"),
        (
            ("--weights", "awq+cash"),
            "unknown variant 'awq+cash' for --weights; did you mean 'awq+cache'?",
        ),
    ],
)
def test_what_it_refuses(whet: Whet, pair: Path, words: tuple[str, ...], said: str) -> None:
    spec = write_spec(pair)
    assert whet("break-even", spec, "-o", "map", *words).sentence(2) == said


def test_a_filled_folder_needs_resume(whet: Whet, pair: Path) -> None:
    (pair / "map").mkdir()
    (pair / "map" / "journal.jsonl").write_text("{}\n")
    assert "--resume" in whet("break-even", write_spec(pair), "-o", "map").sentence(8)


def test_a_map_ends_with_its_table_and_its_files(
    whet: Whet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stage(monkeypatch, Physics(accepted={"draft": 3.0, "noise0.5": 1.0, "noise1": 0.0}))
    spec = tmp_path / "whet.yaml"
    spec.write_text(spec_with_draft(tmp_path, starts=2).model_dump_json())
    said = whet("break-even", spec, "-o", "map", "--k", "4", "--levels", "0.5,1")
    assert said.code == 0, said.err
    assert "at 1, K = 4: speculation pays above 2.00 tokens a step" in said.out
    assert "K = 4 pays at 1, 2 in flight." in said.out
    made = {file.name for file in (tmp_path / "map").iterdir() if "break_even." in file.name}
    assert made == {f"break_even.{end}" for end in ("csv", "html", "json", "md")}
    again = whet("break-even", spec, "-o", "map", "--k", "4", "--levels", "0.5,1", "--resume")
    assert again.code == 0
