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
  # Blocks of 32 tokens instead of the CPU's 128, so that short system prompts can be cached too.
  args: {{max_model_len: 2048, enforce_eager: true, block_size: 32, max_num_seqs: 64}}
  env: {{VLLM_CPU_KVCACHE_SPACE: "1"}}
workload:
  max_output_tokens: 128
load:
  trials: 2
  min_requests: 8
  requests_per_slot: 2
quality:
  max_documents: 120
  max_tasks: 240
"""


def write_spec(path: Path) -> Path:
    """Write the demo's ``whet.yaml`` to ``path`` and return it."""
    target, draft = pair_paths()
    write_atomic(path, _TEMPLATE.format(target=target, draft=draft).encode())
    return path
