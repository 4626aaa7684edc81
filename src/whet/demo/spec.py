"""The spec of the demo run: the bundled pair on this machine's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.core.store import write_atomic
from whet.demo.inputs import pair_paths

_TEMPLATE: Final = """\
# The demo run: the bundled pair, real vLLM on the CPU. Written by whet demo.
name: demo
model:
  target: {target}
  draft: {draft}
hardware:
  price_usd_per_hour: 0.085
  price_source: a 2-core cloud machine (AWS c5.large, on demand, us-east-1); put your own
engine:
  args:
    max_model_len: 2048
    max_num_seqs: 64
    enforce_eager: true
    block_size: 32    # instead of the CPU's 128, so that short system prompts can be cached too
    dtype: {dtype}    # what this CPU computes fastest; the weights are stored in 16 bits
  env:
    VLLM_CPU_KVCACHE_SPACE: "1"
    VLLM_CPU_NUM_OF_RESERVED_CPU: "0"
recipes:
  awq:
    calibration: {{samples: 512, max_tokens: 128}}
workload:
  long_system_share: 0.15
  input_output_ratio: 8
  max_input_tokens: 1000
  max_output_tokens: 96
load:
  trials: 1         # ten minutes on 2 cores allow one; a real run wants three
  min_requests: 8
  requests_per_slot: 2
quality:
  max_documents: 40
  max_tasks: 48
  max_tokens: 512
  lossless_prompts: 8
"""


def write_spec(path: Path) -> Path:
    """Write the demo's ``whet.yaml`` to ``path`` and return it."""
    target, draft = pair_paths()
    text = _TEMPLATE.format(target=target, draft=draft, dtype=cpu_dtype())
    write_atomic(path, text.encode())
    return path


def cpu_dtype() -> str:
    """float32 on an x86 CPU without bfloat16 arithmetic, where it is about five times faster."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return "auto"
    return "auto" if {"avx512_bf16", "amx_bf16", "bf16"} & set(words) else "float32"
