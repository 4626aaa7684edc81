"""vLLM and llama.cpp in one run: GGUF served and measured, every claim judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_contract_e2e import why_not
from tests.flow.run.test_as_stored_e2e import SPEC as SMALL
from tests.flow.run.test_quantize import Heard
from tests.llama_tools import write_gguf
from whet.core.run import Run
from whet.core.spec import parse_spec
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder

MISSING = why_not("vllm") or why_not("llamacpp")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
LLAMA: dict[str, Any] = {"weights": "./q8/Q8_0.gguf", "engine": "llamacpp"}
SPEC: dict[str, Any] = {
    **SMALL,
    "name": "two",
    "model": {"target": str(pair_paths()[0])},
    "engines": {"llamacpp": {"args": {"max_model_len": 512, "max_num_seqs": 4}}},
    "baseline": "fp16",
    "variants": {
        "fp16": {},
        "q8": LLAMA,
        "q8+cache": {**LLAMA, "prefix_cache": True},
        "q8+q4": {**LLAMA, "speculation": {"draft": "./q4/Q4_K_M.gguf", "num_tokens": 3}},
    },
}


@pytest.mark.usefixtures("lenient_client")
def test_two_engines_in_one_matrix(tmp_path: Path) -> None:
    for name, scheme in (("q8", "Q8_0"), ("q4", "Q4_K_M")):
        write_gguf(pair_paths()[0], tmp_path / name, scheme)
    with RunStore.open(tmp_path / "run") as store:
        run(parse_spec(SPEC, base=tmp_path), Recorder(store=store, observer=Heard()))
    done = Run.read(tmp_path / "run")
    assert done.unmeasured == ()
    assert {name: each.engine for name, each in done.engines.items()} == {
        "fp16": "vllm",
        "q8": "llamacpp",
        "q8+cache": "llamacpp",
        "q8+q4": "llamacpp",
    }
    outcomes = {(v.variant, v.claim.kind): v.outcome for v in done.verdicts}
    assert {key for key, outcome in outcomes.items() if outcome == "proved"} >= {
        *((name, "weights") for name in SPEC["variants"]),
        *((name, "settings") for name in SPEC["variants"]),
        ("q8", "prefix_cache"),
        ("q8", "speculation"),
        ("q8+q4", "speculation"),
    }
    quality = done.quality["q8"]
    assert quality.perplexity is None
    assert quality.answers
    assert "leaves prompt_logprobs out of its replies" in str(quality.reason)
    reasons = {each.variant: each.reason for each in done.decision.excluded}  # type: ignore[union-attr]
    assert reasons["q8"].startswith("its quality is unknown")
