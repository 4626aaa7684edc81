"""``whet quantize --compare`` with real vLLM on the bundled target: two schemes, few samples."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from whet.core.records import QualityRecord
from whet.core.spec import QualitySpec
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.engines.vllm import find_installed
from whet.flow.quantize.table import scheme_table
from whet.quality import Encoder, heldout_ids
from whet.quality.distance import DistanceMeter

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]


def compare(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    limits = ["--samples", "16", "--max-tokens", "64", "--max-documents", "8"]
    words = [str(pair_paths()[0]), str(out), "--compare", "--schemes", "w4a16-rtn,w8a8"]
    words += [*limits, "--max-tasks", "8", "--max-document-tokens", "128", *more]
    words += ["--loads", "1", "4"]
    return subprocess.run(
        [sys.executable, "-m", "whet", "quantize", *words],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )


def test_two_schemes_made_measured_and_served(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = compare(out)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    table = scheme_table(RunStore.read(out))
    assert [row.name for row in table.rows] == ["16bit", "w4a16-rtn", "w8a8"]
    source, rtn, w8a8 = table.rows
    assert source.served is not None, source.not_served
    assert source.perplexity is not None
    for row, kernel in ((rtn, "Int4"), (w8a8, "Int8ScaledMM")):
        assert row.served is not None, row.not_served
        # CPUWNA16 where there is AVX-512, whet's own TorchInt4 elsewhere.
        names = " ".join(row.served.kernels).replace("CPUWNA16", "Int4")
        assert kernel in names
        assert row.distances is not None
        assert row.served.perplexity is not None
        # Two ways to the same figure: vLLM's kernels, and float32 with everything rounded.
        assert row.served.perplexity.value == pytest.approx(row.perplexity.value, rel=0.01)
    for row in table.rows:
        assert row.served is not None
        assert row.served.memory_bytes is not None
        assert row.served.memory_bytes > row.weight_bytes
        assert [each.load for each in row.served.speeds] == [1, 4]
        for each in row.served.speeds:
            assert each.output_tps or "is invalid" in str(each.reason), "other work may disturb it"
    assert source.served.perplexity.value == pytest.approx(source.perplexity.value, rel=1e-3)
    assert rtn.distances.kl.value > w8a8.distances.kl.value > 0
    quality = RunStore.read(out).get("quality", "w8a8", QualityRecord)
    assert quality is not None
    assert quality.baseline == "16bit"
    lines = list(csv.DictReader((out / "schemes.csv").read_text().splitlines()))
    assert [line["tasks_asked"] for line in lines] == ["8", "8", "8"]
    assert [line["loads"] for line in lines] == ["1; 4"] * 3
    before = (out / "served" / "w8a8.json").stat().st_mtime_ns
    again = compare(out)
    assert again.returncode == 0, again.stderr[-3000:]
    assert (out / "served" / "w8a8.json").stat().st_mtime_ns == before, "nothing is done twice"


def test_distances_through_the_server_agree_with_those_in_this_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = compare(out, "--server-distances")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    source = pair_paths()[0]
    spec = QualitySpec(max_documents=8, max_tokens=128)
    documents = heldout_ids(out / "inputs" / "heldout.jsonl", Encoder(source), spec)
    meter = DistanceMeter(source, documents, device="cpu")
    _, *rows = scheme_table(RunStore.read(out)).rows
    for row in rows:
        ours, exact = row.distances, meter.measure(out / row.name)
        assert ours is not None, row.not_measured
        assert ours.top_k == 20
        assert ours.covered is not None
        assert ours.covered > 0.9
        # A lower bound by 20 of 4,096 tokens, and the engine's own arithmetic. In bf16 likeliest
        # tokens are often alike, which is no flip.
        assert ours.kl.value == pytest.approx(exact.kl.value, rel=0.3, abs=5e-4)
        assert ours.flips.value < exact.flips.value + 0.01
        assert ours.perplexity_ratio.value == pytest.approx(exact.perplexity_ratio.value, rel=3e-3)
