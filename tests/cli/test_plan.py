"""``whet plan``: a table without a GPU, and one sentence for what cannot be planned."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
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
    assert "1,024 prompt tokens (512 shared), 128 output tokens, 50 requests/s" in said.out
    assert "H200" in said.out
    assert "Predicted, not measured" in said.out
    assert re.search(r" \d+ ±\d+% ", said.out), "each latency with its error"


def test_numbers_need_no_tokenizer(whet: Whet, model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert whet("plan", model, *TRAFFIC, "--gpus", "H200").code == 0


def test_what_another_beats_is_counted_and_shown_with_all(whet: Whet, model: Path) -> None:
    words = ("plan", model, *TRAFFIC, "--gpus", "H100 SXM", "--parallel", "1")
    short, whole = whet(*words).out, whet(*words, "--all").out
    (hidden,) = re.findall(r"(\d+) more cost more or are slower: --all shows them", short)
    rows = [text.count("\nH100 SXM ") for text in (short, whole)]
    assert rows[1] - rows[0] == int(hidden) > 0
    assert "--all shows them" not in whole


def test_a_log_without_counts_is_tokenized(whet: Whet, tmp_path: Path) -> None:
    folder = str(write_tiny_llama(tmp_path / "short"))
    answer = {"choices": [{"message": {"role": "assistant", "content": "it is on its way"}}]}
    rows = [
        {"messages": [{"role": "user", "content": f"where is {n}"}], "response": answer}
        for n in range(40)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = whet("plan", folder, "--workload", "log.jsonl", "--gpus", "L4")
    assert said.code == 0, said.err
    assert re.search(r"[1-9]\d* prompt tokens \(\d+ shared\), [1-9]\d* output tokens", said.out)


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


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return write_model("Llama-3.1-70B", tmp_path / "model")


def test_eight_gpus_by_layout_and_load(whet: Whet, large: Path) -> None:
    layouts = {"TP4": "tp4", "TP8": "tp8", "TP2×DP4": "tp2xdp4", "TP4×DP2": "tp4xdp2"}
    words = ("--gpus", "8x H200", "--parallel", ",".join(layouts.values()))
    weights = ("--weights", "FP8_DYNAMIC,W4A16", "--concurrency", "8,64,256")
    rows = planned(whet, large, *words, *weights)["candidates"]
    assert len(rows) == len(layouts) * 2 * 3
    by = {(row["layout"], row["weights"], row["in_flight"]): row for row in rows}
    assert {key[0] for key in by} == set(layouts)
    # One request waits for fewer weights on each GPU; many have more room in two engines.
    few = {name: by[name, "FP8_DYNAMIC", 8] for name in layouts}
    tpot = {name: row["latencies_ms"]["tpot mean"] for name, row in few.items()}
    assert tpot["TP8"] < tpot["TP4×DP2"] < tpot["TP2×DP4"]
    many = {name: by[name, "FP8_DYNAMIC", 256]["requests_per_s"] for name in layouts}
    assert max(many, key=lambda name: many[name]) == "TP2×DP4"
    # Within 20% of AIConfigurator 0.12's TPOT at 8 in flight (vLLM 0.24, prompts of 1,056).
    assert tpot["TP8"] == pytest.approx(9.0, rel=0.2)
    assert few["TP8"]["relative_errors"]["tpot"] > 0.3
    assert "several GPUs never measured" in few["TP8"]["calibration"]


def test_without_layouts_a_number_of_gpus_has_all_of_them(whet: Whet, large: Path) -> None:
    words = ("--gpus", "4x H200", "--weights", "FP8_DYNAMIC", "--concurrency", "16")
    rows = planned(whet, large, *words)["candidates"]
    assert {row["layout"] for row in rows} == {
        *("TP4", "TP2×DP2", "DP4", "TP2×PP2", "DP2×PP2", "PP4")
    }
    assert {row["gpus"] for row in rows} == {4}


def test_experts_whole_or_divided(whet: Whet, tmp_path: Path) -> None:
    experts = write_model("Qwen3-30B-A3B", tmp_path / "model")
    words = ("--gpus", "H200", "--parallel", "tp8,tp8xep,dp8xep", "--weights", "16bit")
    rows = planned(whet, experts, *words, "--concurrency", "64,512")["candidates"]
    by = {(row["layout"], row["in_flight"]): row for row in rows}
    assert by["DP8×EP", 64]["weight_bytes"] > by["TP8×EP", 64]["weight_bytes"]
    # Each rank keeps its own requests' 4 KV heads, which TP8 stores twice.
    assert by["DP8×EP", 512]["requests_per_s"] > by["TP8×EP", 512]["requests_per_s"]
    text = whet("plan", experts, *TRAFFIC, *words, "--concurrency", "64").out
    assert "several GPUs and experts never measured" in text


def test_the_objective_is_marked_where_concurrency_are_given(whet: Whet, model: Path) -> None:
    words = ("--gpus", "H200", "--concurrency", "1,256", "--objective", "tpot:p95<9ms")
    text = whet("plan", model, *TRAFFIC, *words).out
    assert "256 !" in text
    assert "! misses the objective" in text


def test_what_meets_the_objective_goes_before_what_does_not(whet: Whet, model: Path) -> None:
    rows = planned(whet, model, "--objective", "tpot:p95<8ms")["candidates"]
    met = [row["missed"] is None for row in rows]
    assert met == sorted(met, reverse=True)
    costs = [row["cost_per_1m_tokens"] for row in rows if row["missed"] is None]
    assert costs == sorted(costs)
    assert any(row["front"] for row in rows)


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


def test_a_short_request_fits_a_model_of_a_short_context(whet: Whet, tmp_path: Path) -> None:
    model = str(write_tiny_llama(tmp_path / "short"))
    words = ("plan", model, "--gpus", "L4", "--workload")
    said = whet(*words, "prompt=100,output=20")
    assert said.code == 0, said.err
    said = whet(*words, "prompt=600,output=20")
    assert re.search(r"requests of \d+ tokens do not fit the model's 512", said.sentence(USAGE))


def test_a_log_s_doubts_are_warnings(whet: Whet, model: Path, tmp_path: Path) -> None:
    row = {"prompt": "where is it", "usage": {"prompt_tokens": 300, "completion_tokens": 20}}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n" * 20)
    said = whet("plan", "--workload", "log.jsonl", str(model), "--gpus", "L4", "--quiet")
    assert said.code == 0, said.err
    assert "warning: all 20 prompts end in the same text" in said.out


def test_blocks_that_begin_an_earlier_row_are_cached(
    whet: Whet, model: Path, tmp_path: Path
) -> None:
    for name, step in (("same", 0), ("other", 4)):
        rows = [
            {"timestamp": 100 * n, "input_length": 2000, "output_length": 20, "hash_ids": ids}
            for n in range(64)
            if (ids := list(range(step * n, step * n + 4)))
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
        (["--workload", "9" * 300], USAGE, "is not a file; write prompt=1024,output=128"),
        (["--workload", "nothing.jsonl"], USAGE, "is not a file; write prompt=1024,output=128"),
        (["--workload", "prompt=many,output=1"], USAGE, "'prompt=many' is not understood"),
        (["--workload", "prompt=100"], USAGE, "needs a prompt and an output of at least 1 token"),
        (["--workload", "prompt=9,output=9,shared=9"], USAGE, "leave nothing of a prompt of 9"),
        (["--workload", "prompt=200000,output=9"], USAGE, "do not fit the model's 131,072"),
        ([*TRAFFIC, "--gpus", "H300"], USAGE, "no GPU is known as 'H300'"),
        ([*TRAFFIC, "--gpus", "H100"], USAGE, "no GPU is known as 'H100' (known: "),
        ([*TRAFFIC, "--parallel", "two"], USAGE, "'two' is not understood; give numbers of GPUs"),
        ([*TRAFFIC, "--gpus", "4x L4", "--parallel", "tp8"], USAGE, "TP8 needs 8 GPUs and --gpus"),
        ([*TRAFFIC, "--parallel", "tp3"], USAGE, "none of these layouts divides the model"),
        ([*TRAFFIC, "--concurrency", "0,8"], USAGE, "give whole numbers from 1 to 4,096"),
        ([*TRAFFIC, "--concurrency", "x"], USAGE, "such as 8,64,256"),
        (
            [*TRAFFIC, "--weights", "Q4"],
            USAGE,
            "is not a precision; choose from 16bit, W4A16, W8A16",
        ),
        ([*TRAFFIC, "--prices", "L4"], USAGE, 'write "L4=0.5", US$ an hour above 0'),
        ([*TRAFFIC, "--objective", "fast"], USAGE, "is not a constraint"),
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
            "the model fits none of these GPUs: add --parallel",
        ),
    ],
)
def test_one_sentence_for_what_cannot_be_planned(
    whet: Whet, model: Path, words: list[str], code: int, sentence: str
) -> None:
    said = whet("plan", model, *words)
    assert sentence in said.sentence(code)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--prices=L4=-1", "--prices 'L4=-1'"),
        ("--prices=L4=0", "--prices 'L4=0'"),
        ("--prices=L4=nan", "--prices 'L4=nan'"),
        ("--prices=H200=1,L4=inf", "--prices 'L4=inf'"),
        ("--prices=L4=1e300", "--prices 'L4=1e300'"),
        ("--rate=-1", "--rate"),
        ("--rate=0", "--rate"),
        ("--rate=nan", "--rate"),
        ("--rate=inf", "--rate"),
        ("--gpus=99999999999999999999x H200", "give 1 to 4,096 GPUs"),
        ("--gpus=" + "9" * 5000 + "x H200", "give 1 to 4,096 GPUs"),
        ("--gpus=0x H200", "no GPU is known"),
        ("--concurrency=99999999999999999999", "from 1 to 4,096"),
        ("--concurrency=8,0", "from 1 to 4,096"),
        ("--concurrency=-8", "from 1 to 4,096"),
        ("--concurrency=1e3", "from 1 to 4,096"),
        ("--concurrency=" + "9" * 5000, "from 1 to 4,096"),
        ("--concurrency=nan", "from 1 to 4,096"),
        ("--parallel=99999999999999999999", "is not understood"),
        ("--parallel=tp" + "9" * 5000, "is not understood"),
        ("--workload=prompt=" + "9" * 200 + ",output=1", "is not understood"),
        ("--workload=prompt=1e3,output=1", "is not understood"),
        ("--workload=prompt=-1,output=1", "is not understood"),
        ("--max-model-len=0", "--max-model-len"),
        ("--max-model-len=1", "is less than the longest request"),
        ("--kv-cache=x", "--kv-cache 'x' is not a type"),
        ("--kv-cache=auto,", "--kv-cache '' is not a type"),
        ("--prices=L4=1,L4=2", "--prices has L4 twice"),
        ("--workload=prompt=9,prompt=8,output=1", "'prompt=8' is not understood"),
        ("--objective=ttft:p95<nanms", "ttft:p95<nanms"),
        ("--objective=ttft:p95<-5ms", "ttft:p95<-5ms"),
    ],
)
def test_a_number_that_cannot_be(whet: Whet, model: Path, option: str, said: str) -> None:
    assert said in whet("plan", model, *TRAFFIC, option).sentence(USAGE)


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", "4096x H200", "--weights", "16bit"),
        ("--gpus", "H200", "--parallel", "1", "--weights", "16bit", "--concurrency", "4096"),
    ],
)
def test_the_largest_that_can_be_planned_ends(
    whet: Whet, model: Path, words: tuple[str, ...]
) -> None:
    assert whet("plan", model, *TRAFFIC, *words, "-q").code in (0, USAGE, INFEASIBLE)
