"""Which library multiplies the quantized linear layers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from whet.core.flags import parse_json, plain_args
from whet.core.records.engine import UNQUANTIZED, ResolvedEngine, Scalar, Variant
from whet.core.records.evidence import Claim, EngineFacts
from whet.engines import EngineProfile
from whet.levers.base import Lever, Outcome, Start, claim_per_start

Library = Literal[
    "auto", "aiter", "b12x", "conch", "cutlass", "deep_gemm", "emulation", "exllama", "fbgemm",
    "flashinfer_b12x", "flashinfer_cudnn", "flashinfer_cutedsl", "flashinfer_cutlass",
    "flashinfer_trtllm", "humming", "machete", "marlin", "torch", "triton",
]  # fmt: skip
_FLAG: Final = "linear_backend"


class Kernels(Lever):
    """``kernels``: library of the quantized linear layers."""

    name = "kernels"
    spec_type = Library

    def engine_args(self, value: Any) -> Mapping[str, Scalar]:
        """``--linear-backend``."""
        return {_FLAG: value}

    def problem(self, variant: Variant) -> str | None:
        """A library for weights that are not quantized; vLLM says what it has no kernel for."""
        library = requested_library(variant)
        plain = variant.scheme in UNQUANTIZED and "quantization" not in plain_args(variant)
        if library is None or not plain:
            return None
        return (
            f"kernels: {library} chooses how quantized weights run, and these are "
            f"{variant.scheme}; leave kernels out"
        )

    def claims(self, resolved: ResolvedEngine) -> Iterator[Claim]:
        """Only where a library is requested."""
        if library := requested_library(resolved.variant):
            yield claim_per_start(
                "kernels",
                f"quantized linear layers run on kernels of {library}",
                "the log names such a kernel, and no other",
            )

    def judge_start(self, claim: Claim, start: Start) -> Outcome:
        """Every kernel that the log names, of the model and of a draft."""
        refused = start.notices(start.profile.patterns.kernels_refused)
        if refused:
            return "contradicted", f"the engine chose by itself: {refused[0]}", refused
        library = requested_library(start.variant) or ""
        lines = tuple(k for k in start.facts.weight_kernels if not k.endswith(" for experts"))
        known = start.profile.kernels.libraries.get(library, "(?!)")
        wrong = tuple(line for line in lines if not re.match(known, line))
        if wrong:
            return "contradicted", f"another kernel runs: {wrong[0]}", wrong
        if not lines:
            return "unproved", f"the log names no kernel of {library}", ()
        return "proved", f"{', '.join(lines)}{_times(start.facts)}", lines


def requested_library(variant: Variant) -> str | None:
    """The library by its name in whet.yaml; None where the engine chooses."""
    args = plain_args(variant)
    whole = parse_json(args.get("kernel_config", ""))
    own = whole if isinstance(whole, dict) else {}
    name = str(args.get(_FLAG, own.get(_FLAG, "auto"))).lower().replace("-", "_")
    return None if name == "auto" else name


def requested_kernels(
    variant: Variant, profile: EngineProfile, among: frozenset[str]
) -> frozenset[str]:
    """Those of the kernels ``among`` that a requested library has."""
    pattern = profile.kernels.libraries.get(requested_library(variant) or "", "(?!)")
    return frozenset(kernel for kernel in among if re.match(pattern, kernel))


def _times(facts: EngineFacts) -> str:
    """Some libraries compile at the start, while weights are loaded or the model warms up."""
    parts = (("loaded", facts.load_s), ("warmed up", facts.init_s))
    times = [f"{what} in {seconds:.0f} s" for what, seconds in parts if seconds is not None]
    return f"; {', '.join(times)}" if times else ""
