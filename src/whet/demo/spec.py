"""The spec of the demo run on this machine's CPU."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

from whet.core.provenance import cpu_dtype
from whet.core.quote import yaml_scalar
from whet.core.store import write_atomic
from whet.demo.bundled import CHAT_LOG, pair_paths

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
    max_model_len: 1152
    max_num_seqs: 64
    enforce_eager: true
    block_size: 32    # instead of the CPU's 128, so that short system prompts can be cached too
    dtype: {dtype}    # what this CPU computes fastest; the weights are stored in 16 bits
  env:
    VLLM_CPU_KVCACHE_SPACE: "1"
    VLLM_CPU_NUM_OF_RESERVED_CPU: "0"
variants:
  default: {{prefix_cache: true}}     # vLLM's default, which savings are counted against
  draft+cache: {{prefix_cache: true, speculation: {{}}}}
  small: {{weights: {draft}, prefix_cache: true}}   # in the target's place: fast and wrong
baseline: default
traffic: {{log: {log}, keep_prompts: true}}   # requests of a support desk
load:
  concurrency: [8]
  trials: 1
  max_starts: 4     # of each finalist, until their difference shows
  min_requests: 12
  requests_per_slot: 12
  warmup_requests: 12
quality:
  max_documents: 60
  max_tasks: 48
  max_tokens: 512
  lossless_prompts: 8
  sampled: false   # the log is greedy, and vLLM's build for CPUs samples wrongly with a draft
objective:   # a prompt takes two cores up to half a second where AVX-512 is missing
  ttft_ms: [500, 1000, 2000]
  recommend_ttft_ms: 2000
"""


def write_spec(path: Path) -> Path:
    """Write the demo's ``whet.yaml`` to ``path`` and return it."""
    target, draft = pair_paths()
    log = path.with_name(f"{path.stem}-log.jsonl")
    write_atomic(log, lzma.decompress(CHAT_LOG.read_bytes()))
    text = _TEMPLATE.format(
        target=yaml_scalar(str(target)),
        draft=yaml_scalar(str(draft)),
        log=yaml_scalar(f"./{log.name}"),
        dtype=cpu_dtype(),
    )
    write_atomic(path, text)
    return path
