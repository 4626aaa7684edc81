"""``whet plan``: a table without a GPU, and one sentence for what cannot be planned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet
from tests.zoo.models import write_model

TRAFFIC = ("--workload", "prompt=1024,output=128,shared=512")
INFEASIBLE, USAGE = 4, 2


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model("Llama-3.1-8B", tmp_path / "model")


def planned(whet: Whet, model: Path, *words: str) -> dict[str, Any]:
    said = whet("plan", model, *TRAFFIC, *words, "--json")
    assert said.code == 0, said.err
    document: dict[str, Any] = json.loads(said.out)
    return document


def test_gpus_and_precisions_with_cost_latency_and_error(whet: Whet, model: Path) -> None:
    said = whet("plan", model, *TRAFFIC, "--rate", "50")
    assert said.code == 0, said.err
    assert "1,040 prompt tokens (512 shared), 128 output tokens, 50 requests/s" in said.out
    assert "H200" in said.out
    assert "Predicted, not measured" in said.out


def test_every_candidate_says_that_it_is_predicted(whet: Whet, model: Path) -> None:
    document = planned(whet, model, "--gpus", "H200,L4", "--parallel", "1,2")
    rows = document["candidates"]
    assert {row["gpu"] for row in rows} == {"H200", "L4"}
    assert {row["gpus"] for row in rows} == {1, 2}
    assert {row["weights"] for row in rows} == {"16bit", "FP8_DYNAMIC", "W4A16"}
    assert all(row["predicted"] for row in rows)
    h200, l4 = (next(row for row in rows if row["gpu"] == name) for name in ("H200", "L4"))
    assert (h200["calibration"], l4["calibration"]) != (l4["calibration"], h200["calibration"])
    assert l4["relative_errors"]["tpot"] > h200["relative_errors"]["tpot"]


def test_what_meets_the_objective_goes_before_what_does_not(whet: Whet, model: Path) -> None:
    rows = planned(whet, model, "--objective", "tpot:p95<8ms")["candidates"]
    met = [row["missed"] is None for row in rows]
    assert met == sorted(met, reverse=True)
    costs = [row["cost_per_1m_tokens"] for row in rows if row["missed"] is None]
    assert costs == sorted(costs)
    assert any(row["front"] for row in rows)


def test_memory_by_batch_and_context_for_every_precision(whet: Whet, model: Path) -> None:
    words = (*TRAFFIC, "--memory", "--gpus", "H200", "--parallel", "1")
    rows = json.loads(whet("plan", model, *words, "--json").out)
    assert {row["variant"] for row in rows} == {"16bit", "FP8_DYNAMIC", "W4A16"}
    long = [row for row in rows if row["context"] == 131_072]
    # 8 KV heads of 128 numbers in 32 layers, keys and values at 16 bits: 131,072 bytes a token.
    assert {row["kv_cache"] for row in long if row["in_flight"] == 8} == {8 * 131_072 * 131_072}
    said = whet("plan", model, *words)
    assert "GiB a GPU, 129 usable; ! does not fit" in said.out
    assert re.search(r"131,072 +128 +\S+ !", said.out)


def test_an_old_gpu_gets_int8_and_not_fp8(whet: Whet, model: Path) -> None:
    rows = planned(whet, model, "--gpus", "A100 80GB SXM", "--parallel", "1")["candidates"]
    assert {row["weights"] for row in rows} == {"16bit", "W8A8", "W4A16"}


def test_a_price_of_one_s_own_scales_the_cost(whet: Whet, model: Path) -> None:
    words = ("--gpus", "H200", "--parallel", "1", "--weights", "16bit")
    (usual,), (half,) = (
        planned(whet, model, *words, *more)["candidates"]
        for more in ((), ("--prices", "H200=1.75"))
    )
    assert half["cost_per_1m_tokens"] == pytest.approx(usual["cost_per_1m_tokens"] / 2)


def test_a_trace_is_traffic_too(whet: Whet, model: Path, tmp_path: Path) -> None:
    lines = [
        json.dumps(
            {"timestamp": 250 * n, "input_length": 500, "output_length": 50, "hash_ids": [n]}
        )
        for n in range(40)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    said = whet("plan", model, "--workload", "trace.jsonl", "--gpus", "H200", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["rate"] == pytest.approx(4.0)


def test_blocks_that_begin_an_earlier_row_are_cached(
    whet: Whet, model: Path, tmp_path: Path
) -> None:
    for name, ids in (("same", [1, 2, 3]), ("other", None)):
        rows = [
            {"timestamp": n, "input_length": 2000, "output_length": 20, "hash_ids": ids or [n]}
            for n in range(64)
        ]
        (tmp_path / name).write_text("\n".join(json.dumps(row) for row in rows))
    rates = [
        json.loads(whet("plan", model, "--workload", name, "--gpus", "L4", "--json").out)
        for name in ("same", "other")
    ]
    same, other = (max(c["requests_per_s"] or 0 for c in each["candidates"]) for each in rates)
    assert same > 1.5 * other


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--workload", "nothing.jsonl"], USAGE, "is not a file; write prompt=1024,output=128"),
        (["--workload", "prompt=many,output=1"], USAGE, "'prompt=many' is not understood"),
        (["--workload", "prompt=100"], USAGE, "needs a prompt and an output of at least 1 token"),
        (["--workload", "prompt=9,output=9,shared=9"], USAGE, "leave nothing of a prompt of 9"),
        (["--workload", "prompt=200000,output=9"], USAGE, "do not fit the model's 131,072"),
        ([*TRAFFIC, "--gpus", "H300"], USAGE, "no GPU is known as 'H300'"),
        ([*TRAFFIC, "--gpus", "H100"], USAGE, "'H100' is ambiguous: H100 PCIe, H100 SXM"),
        ([*TRAFFIC, "--parallel", "two"], USAGE, "give whole numbers, such as 1,2,4"),
        ([*TRAFFIC, "--weights", "Q4"], USAGE, "--weights 'Q4' is not a precision"),
        ([*TRAFFIC, "--prices", "L4"], USAGE, 'write "L4=0.5" in US$ an hour'),
        ([*TRAFFIC, "--objective", "fast"], USAGE, "is not a constraint"),
        ([*TRAFFIC, "--calibration", "none.json"], USAGE, "write one with whet calibrate"),
        (
            [*TRAFFIC, "--gpus", "L4", "--objective", "ttft:p95<1ms"],
            INFEASIBLE,
            "no candidate meets ttft:p95<1ms: the nearest is",
        ),
        (
            [
                "--workload",
                "prompt=80000,output=9",
                *["--gpus", "A10G", "--parallel", "1", "--weights", "16bit"],
            ],
            INFEASIBLE,
            "the model fits none of these GPUs; A10G with 16bit comes nearest",
        ),
    ],
)
def test_one_sentence_for_what_cannot_be_planned(
    whet: Whet, model: Path, words: list[str], code: int, sentence: str
) -> None:
    said = whet("plan", model, *words)
    assert said.code == code, said.err
    assert sentence in said.err
    assert "Traceback" not in said.err
