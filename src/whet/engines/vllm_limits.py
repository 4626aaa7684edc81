"""What an installed vLLM cannot run, said before it is started. Each row was seen to fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from whet.core.records.engine import ResolvedEngine, Scalar, Variant
from whet.engines.vllm_int4_cpu import without_avx512

OLDEST: Final = (0, 26)
_MEDUSA_UNTIL: Final = (0, 33)
_CPU_QUANTIZATION: Final = {
    "fp8": "vLLM cannot quantize to FP8 at load on a CPU; quantize with a recipe instead",
}
_NO_EFFECT: Final = {
    "int8_per_channel_weight_only": "--quantization int8_per_channel_weight_only changes nothing "
    "on a dense model; leave it out or use a recipe",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """What is installed. ``cpu_build`` is True for vLLM's CPU back end, whoever built it."""

    version: str
    cpu_build: bool
    arctic: bool


def version_tuple(version: str) -> tuple[int, int]:
    """(0, 32) of ``0.32.1+cpu``; (0, 0) of a development version without numbers."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def limitation(resolved: ResolvedEngine, installed: Installed, *, gpu: bool) -> str | None:
    """Why this cannot run, with the mend, or None."""
    return (
        _build(installed, gpu=gpu)
        or _weights(resolved.variant, resolved.device)
        or _speculation(resolved.variant, resolved.device, installed)
    )


def _build(installed: Installed, *, gpu: bool) -> str | None:
    found = version_tuple(installed.version)
    if (0, 0) < found < OLDEST:
        return f"vLLM {installed.version} is older than 0.26; upgrade it: pip install -U vllm"
    if not installed.cpu_build and not gpu:
        return (
            f"vLLM {installed.version} is the CUDA build and this machine shows no NVIDIA GPU; "
            "check nvidia-smi, or install a CPU build of vLLM"
        )
    return None


def _weights(variant: Variant, device: str) -> str | None:
    args = dict(variant.engine_args)
    quantization = str(args.get("quantization", ""))
    if quantization in _NO_EFFECT:
        return _NO_EFFECT[quantization]
    return _cpu_weights(variant) if device == "cpu" else None


def _cpu_weights(variant: Variant) -> str | None:
    args = dict(variant.engine_args)
    quantization = str(args.get("quantization", ""))
    backend = str(args.get("attention_backend", "CPU_ATTN"))
    eight_bit_cache = str(args.get("kv_cache_dtype", "")).startswith("fp8")
    rules = (
        (quantization in _CPU_QUANTIZATION, _CPU_QUANTIZATION.get(quantization, "")),
        (
            variant.scheme == "W8A16" or "W8A16" in variant.recipe_schemes,
            "vLLM has no W8A16 kernel for a CPU; use W4A16 or W8A8",
        ),
        # These two were seen on 0.32: such a CPU's build leaves the operations out.
        (
            "FP8" in variant.recipe_schemes and without_avx512(),
            "vLLM's FP8 with fixed input scales needs AVX-512 on a CPU; use FP8_DYNAMIC or W8A8",
        ),
        (
            eight_bit_cache and without_avx512(),
            "vLLM's FP8 KV cache needs AVX-512 on a CPU; leave kv_cache_dtype out",
        ),
        (
            backend.upper() != "CPU_ATTN",
            f"vLLM ignores --attention-backend {backend} on a CPU; leave it out",
        ),
    )
    return next((sentence for holds, sentence in rules if holds), None)


def _speculation(variant: Variant, device: str, installed: Installed) -> str | None:
    speculation = variant.speculation
    if speculation is None:
        return None
    options: dict[str, Scalar] = dict(speculation.options)
    cpu = device == "cpu"
    rules = (
        (
            speculation.method == "draft_model" and speculation.draft_path is None,
            "speculation with a draft model needs a draft; set model.draft",
        ),
        (
            speculation.method == "suffix" and not installed.arctic,
            "suffix speculation needs a package: pip install arctic-inference==0.1.1",
        ),
        (
            speculation.method == "ngram_gpu" and cpu,
            "ngram_gpu needs CUDA; use method ngram on a CPU",
        ),
        (
            speculation.method == "mlp_speculator",
            "vLLM cannot load mlp_speculator; use draft_model or ngram",
        ),
        (
            speculation.method == "medusa" and version_tuple(installed.version) >= _MEDUSA_UNTIL,
            "vLLM 0.33 removed medusa; use draft_model, eagle3 or an older vLLM",
        ),
        (
            str(options.get("rejection_sample_method", "")) == "synthetic" and cpu,
            "synthetic acceptance kills the engine on a CPU; leave rejection_sample_method out",
        ),
    )
    return next((sentence for holds, sentence in rules if holds), None)
