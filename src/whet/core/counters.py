"""The names under which an engine's counters are stored and read.

They are vLLM's own. An engine with other names maps them when they are scraped
(``EngineProfile.counters``), so that evidence and metrics know one set.
"""

from __future__ import annotations

from typing import Final

GENERATED: Final = "vllm:generation_tokens_total"
DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS: Final = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
PREFIX_QUERIES: Final = "vllm:prefix_cache_queries_total"
PREFIX_HITS: Final = "vllm:prefix_cache_hits_total"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
FINISHED: Final = "vllm:request_success_total"
RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"
TTFT: Final = "vllm:time_to_first_token_seconds"
TPOT: Final = "vllm:request_time_per_output_token_seconds"
ITL: Final = "vllm:inter_token_latency_seconds"
"""Grows with every step of a request, not when it ends as TPOT and E2E."""
E2E: Final = "vllm:e2e_request_latency_seconds"
CACHE_CONFIG: Final = "vllm:cache_config_info"
LORA_RUNNING: Final = 'vllm:lora_requests_info{running_lora_adapters="'
"""A gauge of wall-clock seconds, one sample for every set of adapters that ran together.

The set is empty while only the bare model has requests.
"""
PROCESS_START: Final = "process_start_time_seconds"
"""A different value means a different process, whose counters start from zero."""
