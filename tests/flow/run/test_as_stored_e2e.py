"""A checkpoint in 4 bits as the target, on real vLLM: its kernel is proved, not 16 bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.flow.run.test_quantize import Heard
from whet.core.run import Run
from whet.core.spec import RecipeSpec, parse_spec
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.engines.vllm import find_installed
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.quant import quantize
from whet.report.run import quality

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

ARGS = {"max_model_len": 512, "enforce_eager": True, "block_size": 32, "max_num_seqs": 8}
SPEC = {
    "name": "stored",
    "model": {"target": "./w4"},
    "hardware": {"price_usd_per_hour": 0.1},
    "recipes": {},
    "engine": {"args": ARGS, "env": {"VLLM_CPU_KVCACHE_SPACE": "1"}},
    "workload": {
        "long_system_share": 0.0,
        "max_output_tokens": 16,
        "max_input_tokens": 200,
        "output_lengths": "ratio",
    },
    "load": {
        "concurrency": [1],
        "trials": 1,
        "order": "blocks",
        "min_requests": 4,
        "requests_per_slot": 2,
        "warmup_requests": 2,
        "confirm": False,
    },
    "quality": {
        "max_documents": 4,
        "max_tasks": 4,
        "max_tokens": 128,
        "sampled": False,
        "lossless_prompts": 0,
        "golden_probes": 0,
    },
    "objective": {"ttft_ms": [60000], "recommend_ttft_ms": 60000},
    "baseline": "stored",
    "variants": {"stored": {"weights": "as_stored"}},
}


@pytest.mark.usefixtures("lenient_client")
def test_a_quantized_target_on_a_real_server(tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "not read"}\n')
    recipe = RecipeSpec(method="rtn", scheme="W4A16", group_size=32)
    quantize(pair_paths()[0], tmp_path / "w4", recipe, calibration=text)
    with RunStore.open(tmp_path / "run") as store:
        run(parse_spec(SPEC, base=tmp_path), Recorder(store=store, observer=Heard()))
    done = Run.read(tmp_path / "run")
    (weights,) = (each for each in done.verdicts if each.claim.kind == "weights")
    assert weights.claim.statement == "W4A16 weights run on a kernel made for them"
    assert (weights.outcome, done.unmeasured) == ("proved", ())
    section = quality.build(done)
    assert section is not None
    assert "the model as stored (W4A16), not with 16 bit" in str(section.nodes[0])
