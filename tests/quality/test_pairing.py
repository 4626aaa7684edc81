"""A stored record judged against another run's: the gate's own figures, and what it refuses."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from whet.core.records.quality import QualityRecord
from whet.core.run import Run
from whet.quality import rejudge

STORED = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
TOLERANCES = (0.01, 0.02, 0.05)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, QualityRecord]:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    return dict(Run.read(folder / "run").quality)


def test_against_its_own_baseline_a_record_is_judged_as_it_was(
    records: dict[str, QualityRecord],
) -> None:
    stored = records["awq+draft+cache"]
    again = rejudge(stored, records["fp16"], TOLERANCES)
    assert again.verdicts == stored.verdicts
    assert [each.p_value for each in again.tasks] == [each.p_value for each in stored.tasks]
    assert again.perplexity_ratio is not None
    assert stored.perplexity_ratio is not None
    assert again.perplexity_ratio.high == pytest.approx(stored.perplexity_ratio.high, abs=1e-5)


def test_a_broken_document_fails_every_tolerance(records: dict[str, QualityRecord]) -> None:
    stored = records["fp16"]
    (total, tokens), *rest = stored.nll
    broken = replace(stored, nll=((total + tokens, tokens), *rest))
    judged = rejudge(broken, stored, TOLERANCES)
    assert {word for _, word in judged.verdicts} == {"fail"}
    assert "1 of 60 held-out documents changes by up to +1.00 nats" in (judged.reason or "")


def test_other_questions_and_a_baseline_without_figures_are_unknown(
    records: dict[str, QualityRecord],
) -> None:
    stored = records["fp16"]
    for baseline, why in (
        (replace(stored, data_sha256="0" * 64), "measured on other text"),
        (replace(stored, nll=()), "no perplexity to compare with"),
    ):
        judged = rejudge(stored, baseline, TOLERANCES)
        assert {word for _, word in judged.verdicts} == {"unknown"}
        assert why in (judged.reason or "")
