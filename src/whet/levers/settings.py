"""Every engine flag of a variant: resolved as requested, by whatever source reports it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from whet.core.flags import (
    RUST_FRONTEND_ENV,
    format_value,
    parse_json,
    plain_args,
    settings_of,
    split_flag,
)
from whet.core.outside import json_value
from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim
from whet.core.units import GIB
from whet.engines import get_profile
from whet.levers.base import Lever, Outcome, Start, claim_per_start

NOT_LEVERS: Final = frozenset(
    {"disable_uvicorn_access_log", "disable_log_requests", "enable_prompt_tokens_details"}
    | {RUST_FRONTEND_ENV}
)
"""Flags that change what is reported and not what runs, and a variable with a label of its own."""
PARALLEL: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
)
_OWN_CLAIM: Final = frozenset(
    {"quantization", "kv_cache_dtype", "attention_backend", "async_scheduling", *PARALLEL}
    | {"linear_backend"}
)
"""Flags with a claim of their own; ``enforce_eager`` and the rest are among the settings too."""

_LONG_LIST: Final = 6
_SPECULATION: Final = "speculative_config"
_VERIFICATION: Final = "rejection_sample_method"
_DRAFT_SAMPLES: Final = "draft_sample_method"
_DRAFT_HEAD: Final = "draft_lm_head_quantization"
_CUSTOM_OPS: Final = "compilation_config.custom_ops"
"""A list that vLLM extends: a word for the operations that it does not name, and more of them."""
_GRAPHS: Final = "compilation_config.cudagraph_mode"
_KV_BYTES: Final = "kv_cache_memory_bytes"
_UTILIZATION: Final = "gpu_memory_utilization"
_GIB_DIGITS: Final = 0.0051
"""The log has the memory of the cache in GiB with two digits."""
_CASCADE: Final = "disable_cascade_attn"
_GRAPH_MODES: Final = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2, 0]": "FULL_DECODE_ONLY",
    "[2, 1]": "FULL_AND_PIECEWISE",
}
"""vLLM's ``CUDAGraphMode`` as ``/server_info`` writes it."""
ON: Final = frozenset({"true", "on", "yes"})
OFF: Final = frozenset({"false", "off", "no", "none", "null"})


class Settings(Lever):
    """Plain engine flags; a flag needs no lever of its own."""

    name = "settings"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``kv_cache_dtype=fp8``: every flag and every variable with its value."""
        settings = settings_of(variant)
        yield from (f"{name}={_short(value)}" for name, value in settings if name not in NOT_LEVERS)

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """One claim for all flags."""
        if requested := requested_settings(resolved.variant):
            yield claim_per_start(
                "settings",
                "the requested settings are the ones resolved: "
                + ", ".join(f"{name}={value}" for name, value in requested.items()),
                f"{_pages(resolved)} or the log show each of them",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Every setting that some source reports must be as requested.

        A flag that no source reports is named; where the variant itself sets it, it is a lever
        without proof.
        """
        requested = requested_settings(start.variant)
        reports = {name: list(_sources(name, start)) for name in requested}
        quotes = tuple(quote for name in requested for _, quote in reports[name])
        wrong = [
            f"{name}={value}, and {quote}"
            for name, value in requested.items()
            for resolved, quote in reports[name]
            if not _agrees(name, value, resolved)
        ]
        if wrong:
            return "contradicted", f"requested {'; '.join(wrong)}", quotes
        silent = [name for name, sources in reports.items() if not sources]
        mine = {*start.variant.own_args, _SPECULATION}
        own = [name for name in requested if {name, name.split(".")[0]} & mine]
        unreported = [name for name in silent if name in own]
        if unreported or len(silent) == len(requested):
            names = ", ".join(unreported or silent)
            return "unproved", f"no source reports {names}", quotes
        rest = f"; no source reports {', '.join(silent)}" if silent else ""
        levers = ", ".join(f"{name.rsplit('.', 1)[-1]} {requested[name]}" for name in own)
        count = f"{len(requested) - len(silent)} settings are as requested"
        return "proved", f"{levers}: {count}{rest}" if levers else f"{count}{rest}", quotes


def requested_settings(variant: Variant) -> dict[str, Scalar]:
    """The engine flags whose resolved values must be the requested ones.

    ``auto`` and −1 leave the choice to the engine.
    """
    requested = {
        part: value
        for name, whole in plain_args(variant).items()
        if name not in _OWN_CLAIM | NOT_LEVERS
        for part, value in split_flag(name, whole)
        if value not in ("auto", -1, "-1") and part not in _OWN_CLAIM
    }
    if variant.speculation is not None:
        requested["speculative_config.method"] = variant.speculation.method
        requested["speculative_config.num_speculative_tokens"] = variant.speculation.num_tokens
        for name, value in variant.speculation.options:
            if (whole := parse_json(value)) is not None:
                requested[f"speculative_config.{name}"] = json.dumps(whole)
            elif name in (_DRAFT_HEAD, _DRAFT_SAMPLES) or (name, value) == (_VERIFICATION, "block"):
                requested[f"speculative_config.{name}"] = value
    return requested


def _pages(resolved: ResolvedEngine) -> str:
    cache = get_profile(resolved.engine).pages.cache
    return cache if cache == "/server_info" else f"/server_info, the labels of {cache}"


def same_value(requested: Scalar, resolved: str) -> bool:
    """Whether a resolved value is the requested one: ``True``/``true``, ``8``/``8.0``, dtypes."""
    one, two = _plain(str(requested)), _plain(resolved)
    if one == two:
        return True
    if {one, two} <= ON or {one, two} <= OFF:
        return True
    try:
        return float(one) == float(two)
    except ValueError:
        return False


def _plain(text: str) -> str:
    return text.strip().lower().removeprefix("torch.").replace("_", "-")


def _short(value: Scalar) -> str:
    """A value as a label names it: of a long list its ends and its length."""
    items = parse_json(value)
    if not isinstance(items, list) or len(items) <= _LONG_LIST:
        return format_value(value)
    first, second, *_, last = (json.dumps(item) for item in items)
    return f"[{first}, {second}, … {last}; {len(items)}]"


def _agrees(name: str, requested: Scalar, resolved: str) -> bool:
    if name != _CUSTOM_OPS:
        return same_value(requested, resolved)
    try:
        wanted, running = json_value(str(requested)), json_value(resolved)
        return {str(op) for op in wanted} <= {str(op) for op in running}
    except (ValueError, TypeError):
        return same_value(requested, resolved)


def _sources(name: str, start: Start) -> Iterator[tuple[str, str]]:
    """(value, quotation) of every source that reports a setting."""
    logged: dict[str, object] = {
        "max_model_len": start.facts.max_model_len,
        "max_num_batched_tokens": start.facts.batched_tokens,
        "enforce_eager": start.facts.eager,
        "api_server_count": start.facts.api_servers,
        "performance_mode": start.facts.performance_mode,
        f"{_SPECULATION}.{_DRAFT_HEAD}": start.facts.draft_head,
    }
    logged |= dict(start.facts.settings)
    if name == _GRAPHS:
        yield from _graph_modes(start)
        return
    if name == f"{_SPECULATION}.{_VERIFICATION}" and not start.facts.v2_model_runner:
        yield from _no_block_verification(start)
        return
    if name == _CASCADE:
        yield from _no_cascade(start)
    if name == _UTILIZATION and (size := _searched_pool(start)) is not None:
        # A server that shares its GPU in a search; its share has no effect then.
        yield str(start.args[name]), f"in the search its KV cache had {size} bytes instead"
        return
    if (value := logged.get(name)) is not None:
        yield str(value), f"the log says {name} {value}"
    if name == _KV_BYTES and (reserved := start.facts.kv_memory_gib) is not None:
        wanted = float(start.args[name])
        same = abs(wanted / GIB - reserved) < _GIB_DIGITS
        yield str(wanted if same else reserved * GIB), f"the log reserves {reserved} GiB"
    if (label := dict(start.declared.cache).get(name)) is not None:
        yield label, f'{start.profile.pages.cache} says {name}="{label}"'
    keys = (name, *(f"{section}.{name}" for section in start.profile.pages.sections))
    for key in keys:
        if (setting := start.declared.setting(key)) is not None:
            yield setting, f"/server_info says {key}: {setting}"
            return


def _searched_pool(start: Start) -> str | None:
    """The size of a KV cache on a GPU that the variant itself does not set."""
    reported = dict(start.facts.settings) | dict(start.declared.cache)
    size = reported.get(_KV_BYTES, "None")
    is_search = start.resolved.device == "cuda" and _KV_BYTES not in start.args
    return str(size) if is_search and str(size) != "None" else None


def _no_cascade(start: Start) -> Iterator[tuple[str, str]]:
    """Where the setting is resolved as requested and nothing reads it (vLLM 0.26)."""
    if start.resolved.device == "cpu":
        yield "true", "vLLM has no cascade attention on a CPU"
    elif start.facts.v2_model_runner:
        yield "true", "the log says Using V2 Model Runner, which has no cascade attention"
    for notice in start.notices("^Disabling cascade attention"):
        yield "true", f"the log: {notice}"


def _no_block_verification(start: Start) -> Iterator[tuple[str, str]]:
    """The V1 runner verifies token by token, whatever is resolved (vLLM 0.33)."""
    for notice in start.notices(start.profile.patterns.v1_runner):
        yield "standard", f"the log: {notice}"


def _graph_modes(start: Start) -> Iterator[tuple[str, str]]:
    """The resolved mode, and what a worker made of it once it knew the attention backend."""
    for notice in start.facts.notices:
        if (match := re.search(start.profile.patterns.graphs_changed, notice)) is not None:
            yield match[1], f"the log: {notice}"
    if (logged := dict(start.facts.settings).get(_GRAPHS)) is not None:
        yield logged, f"the log says {_GRAPHS} {logged}"
    if (setting := start.declared.setting(_GRAPHS)) is not None:
        yield _GRAPH_MODES.get(setting, setting), f"/server_info says {_GRAPHS}: {setting}"
