"""What a variant's flags mean for memory: vLLM's names, its defaults where a flag is not set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from whet.core.errors import UsageError
from whet.core.flags import CPU_KV_ENV, parse_json, plain_args
from whet.core.provenance import Device
from whet.core.records.engine import Scalar, Variant
from whet.core.records.model import ModelFacts
from whet.core.units import GIB

DEFAULT_UTILIZATION: Final = 0.92
LARGEST_GRAPH: Final = 512
"""Tokens of vLLM's largest CUDA graph where nothing else is set (``_set_cudagraph_sizes``)."""
_ALIASES: Final = {
    "device_memory_utilization": "gpu_memory_utilization",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
}
_BACKENDS: Final = ("distributed_executor_backend", "data_parallel_backend")
_BLOCK_TOKENS: Final = {"cuda": 16, "cpu": 128}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The flags that decide memory and what is scheduled together.

    ``kv_factor`` is KV bytes relative to 16 bits; ``kv_pool_bytes`` is None where the engine sizes
    the pool. ``data_parallel`` counts the replicas of this host; ``elsewhere`` is True where other
    hosts' devices may serve too. ``max_seqs`` is never more than ``batched_tokens`` unless
    ``seqs_set``: a default gives way, a flag does not. ``graph_tokens`` is the longest step that
    has a CUDA graph. ``in_flight`` tokens may be computed before blocks that have left a window are
    freed; without ``free_windows`` none are.
    """

    max_model_len: int
    utilization: float
    tensor_parallel: int
    batched_tokens: int
    max_seqs: int
    block_tokens: int
    float32: bool
    kv_factor: float
    kv_pool_bytes: int | None
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    elsewhere: bool = False
    seqs_set: bool = False
    graph_tokens: int = LARGEST_GRAPH
    in_flight: int = 1
    free_windows: bool = True
    float32_states: bool = False


def read_settings(variant: Variant, *, target: ModelFacts, device: Device) -> Settings:
    """The settings of a variant; ``UsageError`` for a value that is not a number."""
    args = {_ALIASES.get(name, name): value for name, value in plain_args(variant).items()}
    length = int(_number(args, "max_model_len", -1))
    length = target.max_position if length == -1 else length
    tensor = int(_number(args, "tensor_parallel_size", 1))
    pipeline = int(_number(args, "pipeline_parallel_size", 1))
    replicas = _number(args, "data_parallel_size", 1)
    batched, seqs = _scheduled(args, device, length=length, workers=tensor * pipeline)
    float32 = str(args.get("dtype", "auto")) in ("float32", "float")
    kv_type = str(args.get("kv_cache_dtype", "auto"))
    wide = kv_type in ("float32", "float") or (kv_type == "auto" and float32)
    # A GPU's scheduler runs a step ahead (``max_concurrent_batches`` of vLLM 0.32).
    ahead = device.kind != "cpu" and args.get("async_scheduling") is not False
    return Settings(
        max_model_len=length,
        utilization=_number(args, "gpu_memory_utilization", DEFAULT_UTILIZATION),
        tensor_parallel=tensor,
        batched_tokens=batched,
        max_seqs=seqs,
        block_tokens=int(_number(args, "block_size", _BLOCK_TOKENS.get(device.kind, 16))),
        float32=float32,
        kv_factor=0.5 if kv_type.startswith("fp8") else 2.0 if wide else 1.0,
        kv_pool_bytes=_kv_pool(variant, args, device),
        pipeline_parallel=pipeline,
        data_parallel=int(_number(args, "data_parallel_size_local", replicas)),
        expert_parallel=args.get("enable_expert_parallel") is True,
        elsewhere="ray" in map(args.get, _BACKENDS) or _number(args, "nnodes", 1) > 1,
        seqs_set="max_num_seqs" in args,
        graph_tokens=_graph_tokens(args),
        in_flight=batched * (2 if ahead else 1),
        float32_states=float32
        or device.kind == "cpu"
        or args.get("mamba_ssm_cache_dtype") == "float32",
        free_windows=args.get("disable_hybrid_kv_cache_manager") is not True,
    )


def _graph_tokens(args: dict[str, Scalar]) -> int:
    """As flags of their own or within ``compilation_config``; a list of sizes goes first."""
    inside = parse_json(args.get("compilation_config", ""))
    flags = {**args, **inside} if isinstance(inside, dict) else args
    sizes = flags.get("cudagraph_capture_sizes")
    sizes = parse_json(sizes) if isinstance(sizes, str) else sizes
    if args.get("enforce_eager") is True or flags.get("cudagraph_mode") == "NONE":
        return 0
    if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes):
        return int(max(sizes))
    return int(_number(flags, "max_cudagraph_capture_size", LARGEST_GRAPH))


def _scheduled(
    args: dict[str, Scalar], device: Device, *, length: int, workers: int
) -> tuple[int, int]:
    """``max_num_batched_tokens`` and ``max_num_seqs`` as vLLM settles them where not set.

    By device memory; on a CPU they grow with the ``workers`` among which one replica is split.
    Without chunked prefill a step has room for the longest prompt (``EngineArgs`` of vLLM 0.32).
    """
    tokens, most = 2048, 256
    if device.kind == "cpu":
        tokens, most = 2048 * workers, 128 * workers
    elif device.kind == "cuda" and device.memory_bytes >= 160 * GIB:
        tokens, most = 16384, 1024
    elif device.kind == "cuda" and device.memory_bytes >= 70 * GIB and "A100" not in device.name:
        tokens, most = 8192, 1024
    if args.get("enable_chunked_prefill") is False:
        tokens = max(tokens, length)
    batched = int(_number(args, "max_num_batched_tokens", tokens))
    return batched, int(_number(args, "max_num_seqs", min(most, batched)))


def _kv_pool(variant: Variant, args: dict[str, Scalar], device: Device) -> int | None:
    """The KV pool where it is set by hand: on a CPU the environment goes before the flag.

    The server inherits this process' environment, so a value there counts too.
    """
    space = dict(variant.env).get(CPU_KV_ENV) or os.environ.get(CPU_KV_ENV, "")
    if device.kind == "cpu" and space:
        try:
            return int(space) * GIB
        except ValueError as error:
            raise UsageError(
                f"variant {variant.name!r}: {CPU_KV_ENV} must be a whole number of GiB, not "
                f"{space!r}"
            ) from error
    return int(_number(args, "kv_cache_memory_bytes", 0)) or None


def _number(args: dict[str, Scalar], key: str, default: float) -> float:
    value = args.get(key, default)
    try:
        return float(value)
    except ValueError as error:
        raise UsageError(f"the engine flag {key} must be a number, not {value!r}") from error
