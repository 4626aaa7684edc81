"""The EAGLE-3 head in real vLLM: what it proposes is accepted as the draft's proposals are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.sizes import Sizes

from whet.core.provenance import cpu_dtype
from whet.core.spec import RecipeSpec
from whet.data import write_inputs
from whet.engines.vllm import find_installed
from whet.quant import quantize

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]
OWN_SIZES = Sizes(hidden=384, layers=6, heads=3, kv_heads=1, intermediate=1024)

GENERATE = """
import json, sys

def main():
    from vllm import LLM, SamplingParams

    target, head, prompts, dtype = sys.argv[1:]
    llm = LLM(
        model=target, dtype=dtype, enforce_eager=True, max_model_len=512,
        disable_log_stats=False,
        speculative_config={"method": "eagle3", "model": head, "num_speculative_tokens": 4},
    )
    greedy = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    llm.generate([{"prompt_token_ids": ids} for ids in json.loads(prompts)], greedy)
    found = {m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:spec_decode_num")
             and hasattr(m, "value")}
    print("FOUND", json.dumps(found))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "recipe", [None, {"scheme": "W8A8", "method": "rtn"}], ids=["16 bits", "8 bits"]
)
def test_what_the_head_proposes_is_accepted(tmp_path: Path, recipe: dict[str, str] | None) -> None:
    from lab.testbed import write_testbed
    from transformers import AutoTokenizer

    write_testbed(tmp_path / "pair", target=OWN_SIZES, eagle3=True, device="cpu")
    write_inputs(tmp_path)
    head = tmp_path / "pair" / "eagle3"
    if recipe is not None:
        wanted = RecipeSpec.model_validate(recipe)
        text = tmp_path / "calibration.jsonl"
        head = Path(quantize(head, tmp_path / "head", wanted, calibration=text).path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "pair" / "target")
    lines = (tmp_path / "workload.jsonl").read_text(encoding="utf-8").splitlines()
    users = [item["text"] for line in lines if (item := json.loads(line))["kind"] == "user"]
    prompts = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in users[:4]
    ]
    (tmp_path / "generate.py").write_text(GENERATE, encoding="utf-8")
    words = [str(tmp_path / "pair" / "target"), str(head), json.dumps(prompts), cpu_dtype()]
    # In one process: two of vLLM's three imports are spared.
    alone = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "generate.py"), *words],
        env={**os.environ, **alone, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    drafts = found["vllm:spec_decode_num_drafts"]
    length = 1 + found["vllm:spec_decode_num_accepted_tokens"] / drafts
    assert drafts > 8  # of 4 requests with 32 tokens each
    assert length > 3.0, found  # 4.09 and 4.06 seen; a head that was not made has 1.0
