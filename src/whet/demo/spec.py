"""The specs of the demo runs on this machine's CPU: the bundled pair, and its 0.3B testbed."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

from whet.core.provenance import cpu_dtype
from whet.core.quote import yaml_scalar
from whet.core.store import write_atomic
from whet.demo.bundled import CHAT_LOG, pair_paths

_TEMPLATE: Final = """\
# {about}
name: {name}
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
recipes:
  awq:
    calibration: {{samples: {samples}, max_tokens: 128}}
variants:           # each has one lever more than the one before
  fp16: {{}}
  fp16+cache: {{prefix_cache: true}}   # vLLM's default, which savings are counted against
  draft+cache: {{prefix_cache: true, speculation: {{}}}}
  awq+draft+cache: {{weights: awq, prefix_cache: true, speculation: {{}}}}
traffic: {{log: {log}, keep_prompts: true}}   # requests of a support desk
load:
  concurrency: {concurrency}
  trials: 2         # starts of each server: the fewest that give an interval
  together:         # they start at once, because imports dominate; one is measured at a time
    - [fp16+cache, draft+cache, awq+draft+cache]
  min_requests: {least}
  requests_per_slot: {per_slot}
  warmup_requests: {warmup}
quality:
  max_documents: {documents}
  max_tasks: {tasks}
  max_tokens: {document_tokens}
  lossless_prompts: 8
  sampled: false   # the log is greedy, and vLLM's build for CPUs samples wrongly with a draft
{objective}"""
_OBJECTIVE: Final = """\
objective:   # a prompt takes two cores up to half a second where AVX-512 is missing
  ttft_ms: [500, 1000, 2000]
  recommend_ttft_ms: 2000
"""
_LONG_OBJECTIVE: Final = """\
objective:   # two cores take about a second for a prompt of 250 tokens
  ttft_ms: [2000, 5000, 15000]
  recommend_ttft_ms: 5000
"""


def write_spec(path: Path) -> Path:
    """Write the demo's ``whet.yaml`` to ``path`` and return it."""
    return _write(
        path,
        pair_paths(),
        about="The demo run: the bundled pair, real vLLM on the CPU. Written by whet demo.",
        name="demo",
        samples=200,
        concurrency=[1, 8],
        least=12,
        per_slot=12,
        warmup=12,
        documents=60,
        document_tokens=512,
        tasks=48,
        objective=_OBJECTIVE,
    )


def write_long_spec(path: Path, testbed: Path) -> Path:
    """Write the spec for the 0.3B testbed in ``testbed``, where a token costs 30 times more.

    Its steps are limited by weights and arithmetic, as those of a large model, not by the host.
    """
    return _write(
        path,
        (testbed / "target", testbed / "draft"),
        about="The long demo: the pair at 0.3B parameters. Written by whet demo --long.",
        name="demo-long",
        samples=64,
        concurrency=[1, 4, 16],
        least=16,
        per_slot=6,
        warmup=6,
        documents=60,
        document_tokens=256,
        tasks=16,
        objective=_LONG_OBJECTIVE,
    )


def _write(path: Path, pair: tuple[Path, Path], **values: object) -> Path:
    target, draft = pair
    log = path.with_name(f"{path.stem}-log.jsonl")
    write_atomic(log, lzma.decompress(CHAT_LOG.read_bytes()))
    text = _TEMPLATE.format(
        target=yaml_scalar(str(target)),
        draft=yaml_scalar(str(draft)),
        log=yaml_scalar(f"./{log.name}"),
        dtype=cpu_dtype(),
        **values,
    )
    write_atomic(path, text)
    return path
